"""Sparse weights in blocks, compared with the published formulas over all logits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from model.artifact.files import Artifact
from model.artifact.manifest import SparseActivation, SparsePooling
from model.export.export import Variants, export
from service.engine.backends import heads
from service.engine.backends.heads import SparseWeights
from service.engine.tasks import EncodeTask, OccludedSequence
from service.errors import NonFiniteOutput
from tests.model.retriever_cases import SPLADE_CASES, publish_splade
from tests.model.tiny_tokenizers import BUILDERS

SIZES = (23, 1, 9, 4, 17)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("splade")
    publish_splade(SPLADE_CASES["bert"], root, BUILDERS["wordpiece"]().to_str().encode())
    variants = Variants(explain=False)
    export(str(root), root / "artifact", revision=None, name=None, progress=print, variants=variants)
    return root


def open_weights(published: Path, strategy: SparsePooling, activation: SparseActivation) -> SparseWeights:
    artifact = Artifact.open(published / "artifact")
    head = artifact.manifest.sparse
    assert head is not None
    assert head.decoder is not None
    assert head.decoder.file == "weights.bin", "a tied table is stored once"
    return SparseWeights(artifact, head.model_copy(update={"pooling": strategy, "activation": activation}))


def task_of(tokens: int) -> EncodeTask:
    return EncodeTask(OccludedSequence([5] * tokens, [0] * tokens), None, hidden=False)


@pytest.mark.parametrize("strategy", ["max", "sum"])
@pytest.mark.parametrize("activation", ["log1p_relu", "log1p_log1p_relu"])
@pytest.mark.parametrize("blocks", [(512, 4096, 32), (7, 50, 2), (1, 1, 1)], ids=str)
def test_blocks_give_the_weights_of_the_formula(
    published: Path,
    monkeypatch: pytest.MonkeyPatch,
    strategy: SparsePooling,
    activation: SparseActivation,
    blocks: tuple[int, int, int],
) -> None:
    monkeypatch.setattr(heads, "BLOCK_ROWS", blocks[0])
    monkeypatch.setattr(heads, "BLOCK_ENTRIES", blocks[1])
    monkeypatch.setattr(heads, "BLOCK_TEXTS", blocks[2])
    model: Any = transformers.BertForMaskedLM.from_pretrained(published).eval()  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(3)
    texts = [torch.randn(size, model.config.hidden_size, generator=generator) for size in SIZES]
    found = open_weights(published, strategy, activation).weigh_all(
        [task_of(len(hidden)) for hidden in texts], [hidden.numpy() for hidden in texts]
    )
    for hidden, sparse in zip(texts, found, strict=True):
        with torch.inference_mode():
            weights = torch.log1p(torch.relu(model.cls(hidden)))
        if activation == "log1p_log1p_relu":
            weights = torch.log1p(weights)
        expected = (weights.max(dim=0).values if strategy == "max" else weights.sum(dim=0)).numpy()
        dense = np.zeros(len(expected), dtype=np.float32)
        dense[sparse.token_ids] = sparse.weights
        np.testing.assert_allclose(dense, expected, rtol=1e-5, atol=1e-5)
        assert (sparse.weights > 0).all()


def test_infinite_hidden_states_are_an_error(published: Path) -> None:
    weights = open_weights(published, "max", "log1p_relu")
    with pytest.raises(NonFiniteOutput), np.errstate(invalid="ignore"):
        weights.weigh_all([task_of(2)], [np.full((2, 24), np.nan, dtype=np.float32)])
