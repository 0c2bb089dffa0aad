"""Embedding in int8, from published weights to the engine's answer, beside the same in float32."""

from collections.abc import Callable
from pathlib import Path

import pytest

from model.export import Variants, export
from service.config import Settings
from service.engine.backends import select as providers
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


async def test_int8_is_served_as_near_as_it_was_measured(narrow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer says its precision; layers other than the last stay in float32."""
    monkeypatch.setattr(providers, "_multiplies_int8", lambda: True)  # a CPU without it is refused; near it is anyway
    model = LoadedModel.load(Settings(model_dir=narrow, precision="int8"))
    record = model.artifact.manifest.graphs["int8"]
    assert record.accuracy is not None
    exact = LoadedModel.load(Settings(model_dir=narrow, precision="float32"))
    async with open_house(model) as ours, open_house(exact) as theirs:
        told = (await ours.client.get("/v1/model")).json()
        assert (told["precision"], told["provider"]) == ("int8", "CPUExecutionProvider")
        found, expected = await encode(ours.engine, *TEXTS), await encode(theirs.engine, *TEXTS)
        assert (found.precision, expected.precision) == ("int8", "float32")
        cosines = [
            cosine(left.pooled.values, right.pooled.values)
            for left, right in zip(found.results, expected.results, strict=True)
            if left.pooled is not None and right.pooled is not None
        ]
        assert len(cosines) == len(TEXTS)
        assert record.accuracy.min_cosine - 0.001 <= min(cosines) < 1
        assert (await encode(ours.engine, TEXTS[0], layers=(1,))).precision == "float32"
