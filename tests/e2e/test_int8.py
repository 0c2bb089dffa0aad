"""Embedding in int8, from published weights to the engine's answer, beside the same in float32."""

from collections.abc import Callable
from pathlib import Path

import pytest

from model.export import Variants, export
from service.config import Settings
from service.engine.backends.cpu import detect_cpu
from service.engine.model_loader import LoadedModel
from tests.service.conftest import cosine, encode, open_house

Publish = Callable[[str], Path]

TEXTS = (
    "The miller counts his boats.",
    "Rain.",
    "Ein Hund läuft über 42 Brücken, déjà vu!",
    "Who broke the lamp? The wind broke it.",
    *(f"Boat number {number} waits at the bank of the river." for number in range(40)),
)


@pytest.fixture(scope="module")
def cast(publish: Publish, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact that holds the graph."""
    out = tmp_path_factory.mktemp("int8") / "artifact"
    export(
        str(publish("bert")), out, revision=None, name=None, progress=lambda step: None,
        variants=Variants(("int8",), TEXTS),
    )  # fmt: skip
    return out


@pytest.mark.skipif(not detect_cpu().vnni, reason="this CPU has no VNNI, which int8 requires")
async def test_int8_embeddings_are_near_float32(cast: Path) -> None:
    """Every response says its precision; layers other than the last stay in float32."""
    model = LoadedModel.load(Settings(model_dir=cast, precision="int8"))
    exact = LoadedModel.load(Settings(model_dir=cast, precision="float32"))
    async with open_house(model) as served, open_house(exact) as reference:
        assert (await served.client.get("/v1/model")).json()["precision"] == "int8"
        results, expected = await encode(served.engine, *TEXTS), await encode(reference.engine, *TEXTS)
        assert (results.precision, expected.precision) == ("int8", "float32")
        cosines = [
            cosine(left.pooled.values, right.pooled.values)
            for left, right in zip(results.results, expected.results, strict=True)
            if left.pooled is not None and right.pooled is not None
        ]
        assert len(cosines) == len(TEXTS)
        assert 0.98 <= min(cosines) < 1
        assert (await encode(served.engine, TEXTS[0], layers=(1,))).precision == "float32"
