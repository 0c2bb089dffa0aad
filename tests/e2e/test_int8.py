"""int8 accuracy with the default model, compared with float32."""

from pathlib import Path

import pytest

from model.export.export import Variants, export
from model.export.sample_texts import sample_sentences
from service.config import Settings
from service.engine.backends.cpu import detect_cpu
from service.engine.model_loader import LoadedModel
from tests.service.conftest import cosine, encode, open_harness

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not detect_cpu().vnni, reason="int8: this CPU has no VNNI"),
]

SENTENCES = sample_sentences(200)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the default model with its int8 graph."""
    out = tmp_path_factory.mktemp("int8") / "artifact"
    export("default", out, revision=None, name=None, progress=lambda step: None, variants=Variants(("int8",)))
    return out


async def test_int8_is_close_to_float32_and_does_not_depend_on_batch_composition(artifact: Path) -> None:
    int8 = LoadedModel.load(Settings(model_dir=artifact, precision="int8"))
    float32 = LoadedModel.load(Settings(model_dir=artifact, precision="float32"))
    assert (int8.backend.choice.precision, int8.backend.choice.graph) == ("int8", "int8")
    async with open_harness(int8) as harness, open_harness(float32) as reference:
        batched = (await encode(harness.engine, *SENTENCES)).results
        expected = (await encode(reference.engine, *SENTENCES)).results
        alone = [(await encode(harness.engine, sentence)).results[0] for sentence in SENTENCES]
        layer = await encode(harness.engine, SENTENCES[0], layers=(1,))
    assert harness.engine.info.precision == "int8"
    assert layer.precision == "float32"  # computed on the explain lane
    for packed, single, exact in zip(batched, alone, expected, strict=True):
        assert packed.pooled is not None
        assert single.pooled is not None
        assert exact.pooled is not None
        assert cosine(packed.pooled, exact.pooled) >= 0.998
        assert cosine(packed.pooled, single.pooled) >= 0.9999
