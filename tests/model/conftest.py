"""Tiny published models of every family with random weights, generated offline and identical in every run."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from model.artifact.tokenizer import Tokenizer
from model.checkpoint import load_checkpoint
from model.export import graphs as onnx_graph
from model.export.export import Variants, export, export_graph
from tests.model.family_cases import FAMILY_CASES, HIDDEN_SIZE, bert_case
from tests.model.shared_graphs import export_anew, share_graphs
from tests.model.tiny_tokenizers import BERT_TOKENS, BUILDERS, KINDS, build_wordpiece

Publish = Callable[[str], Path]

share_graphs()


def mark_slow(*families: str, fast: Sequence[str] = ("bert", "xlm-roberta")) -> list[Any]:
    """Return the families as parameters, marked slow except `fast`, which differ in tokenizer and tensor names."""
    return [pytest.param(name, marks=() if name in fast else pytest.mark.slow) for name in families]


@pytest.fixture
def fresh_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export graphs again instead of sharing them, for tests of the exporter itself."""
    monkeypatch.setattr(onnx_graph, "_to_onnx", export_anew)


@pytest.fixture(scope="session")
def definitions() -> dict[str, bytes]:
    """Return the tokenizer.json of each kind."""
    return {name: build().to_str().encode() for name, build in BUILDERS.items()}


@pytest.fixture(scope="session")
def tokenizer_by_kind(definitions: dict[str, bytes], default_artifact: Path) -> dict[str, Tokenizer]:
    """Return one tokenizer of each kind, plus the default model's."""
    default = (default_artifact / "tokenizer.json").read_bytes()
    return {name: Tokenizer(definition) for name, definition in {**definitions, "default": default}.items()}


@pytest.fixture(params=KINDS)
def tokenizer(tokenizer_by_kind: dict[str, Tokenizer], request: pytest.FixtureRequest) -> Tokenizer:
    kind: str = request.param
    return tokenizer_by_kind[kind]


BASE_GRAPHS = Variants()


def export_tiny(root: Path, variants: Variants = BASE_GRAPHS) -> Path:
    """Publish and export a tiny BERT under `root`; return the artifact."""
    tokenizer, published, artifact = build_wordpiece(), root / "tiny-bert", root / "artifact"
    bert_case("bert").publish(published, tokenizer.to_str().encode())
    export(str(published), artifact, variants=variants)
    return artifact


@pytest.fixture(scope="session")
def publish(definitions: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Publish:
    """Return a function that publishes a model and returns its directory.

    It takes a name in `FAMILY_CASES` or a kind that `bert_case` accepts.
    """
    directories: dict[str, Path] = {}

    def publish_kind(kind: str) -> Path:
        if kind not in directories:
            case = FAMILY_CASES.get(kind) or bert_case(kind)
            name = kind.removeprefix("causal-").partition("/")[0].replace(", ", "-")
            directories[kind] = tmp_path_factory.mktemp("published") / f"tiny-{name}"
            case.publish(directories[kind], definitions[case.tokenizer])
        return directories[kind]

    return publish_kind


@pytest.fixture(scope="session")
def published(publish: Publish) -> Path:
    """Return a published BERT; read-only."""
    return publish("bert")


@pytest.fixture
def source(published: Path, tmp_path: Path) -> Path:
    """Return a published BERT that the test may modify."""
    return shutil.copytree(published, tmp_path / "tiny-bert")


@pytest.fixture(scope="session")
def labse(publish: Publish, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a BERT published like LaBSE: sentence-transformers with cls pooling, Dense(Tanh) and Normalize."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    bare = shutil.copytree(publish("bert"), tmp_path_factory.mktemp("bare") / "bert")
    wrapped = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(bare / "tokenizer.json"), **BERT_TOKENS
    )
    wrapped.save_pretrained(bare)
    torch.manual_seed(5)
    dense = Dense(in_features=HIDDEN_SIZE, out_features=19, activation_function=nn.Tanh())
    modules = [Transformer(str(bare), max_seq_length=31), Pooling(HIDDEN_SIZE, "cls"), dense, Normalize()]
    directory = tmp_path_factory.mktemp("published") / "tiny-labse"
    SentenceTransformer(modules=modules, prompts={"query": "find: "}, device="cpu").save_pretrained(str(directory))
    return directory


@pytest.fixture(scope="session")
def graphs(publish: Publish, tmp_path_factory: pytest.TempPathFactory) -> Publish:
    paths: dict[str, Path] = {}

    def export_kind(kind: str) -> Path:
        if kind not in paths:
            paths[kind] = tmp_path_factory.mktemp("graph") / "fast.onnx"
            export_graph(load_checkpoint(publish(kind)).encoder, paths[kind])
        return paths[kind]

    return export_kind


@pytest.fixture(scope="session")
def exported(tiny_artifact: Path) -> Path:
    """Return the artifact of the tiny BERT; read-only."""
    return tiny_artifact


@pytest.fixture(scope="session")
def exported_labse(labse: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the artifact of the tiny LaBSE with its dense layer; read-only."""
    out = tmp_path_factory.mktemp("exported") / "labse"
    export(str(labse), out)
    return out


@pytest.fixture
def artifact(exported: Path, tmp_path: Path) -> Path:
    return shutil.copytree(exported, tmp_path / "artifact")
