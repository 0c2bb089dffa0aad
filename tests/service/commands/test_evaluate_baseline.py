"""`attendant evaluate --baseline`: measures of both artifacts, and their paired differences."""

from pathlib import Path
from typing import Any

import pytest

from service.commands.labeled_texts import TextError
from tests.service.commands.evaluate_command import Evaluate, Run

FILES = (
    "--sts", "sts.jsonl", "--retrieval", "retrieval.jsonl", "--top-k", 3,
    "--word-in-context", "words.jsonl", "--attribution", "attribution.jsonl",
)  # fmt: skip


def estimates(figures: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not isinstance(figures, dict):
        return {}
    if figures.keys() == {"value", "low", "high"}:
        return {path: figures}
    return {key: value for name, item in figures.items() for key, value in estimates(item, (*path, name)).items()}


@pytest.mark.slow
def test_differences_match_both_evaluations(evaluate: Evaluate, default_artifact: Path, exported_labse: Path) -> None:
    """The models have different dimensions. Methods that only one of them supports have no difference."""
    result = evaluate(default_artifact, "--baseline", exported_labse, *FILES)
    own, base = evaluate(default_artifact, *FILES), evaluate(exported_labse, *FILES)
    assert result["baseline"] == {key: base[key] for key in result["baseline"]}
    assert {key: own[key] for key in result["baseline"]} == {key: result[key] for key in result["baseline"]}
    assert (own["baseline"], own["difference"]) == (None, None)
    differences, values, others = estimates(result["difference"]), estimates(own), estimates(base)
    assert differences.keys() == values.keys() & others.keys()
    assert values.keys() - others.keys() == {
        ("attribution", "methods", f"similarity_{name}") for name in ("contributions", "leave_one_out")
    }
    for key, difference in differences.items():
        assert difference["value"] == pytest.approx(values[key]["value"] - others[key]["value"]), key
        assert difference["low"] - 1e-9 <= difference["value"] <= difference["high"] + 1e-9


def test_differences_from_itself_are_zero(evaluate: Evaluate, exported: Path) -> None:
    result = evaluate(exported, "--baseline", exported, *FILES)
    assert {tuple(item.values()) for item in estimates(result["difference"]).values()} <= {(0, 0, 0)}


def test_models_are_loaded_one_after_the_other(run: Run, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The baseline is loaded after the first evaluation, in the same precision."""
    loaded: list[tuple[Path, str]] = []

    def evaluate(settings: Any, datasets: Any, top_k: int) -> None:
        loaded.append((settings.model_dir, settings.precision))
        if len(loaded) == 2:
            raise TextError("stopped")

    monkeypatch.setattr("service.commands.evaluate.evaluate", evaluate)
    assert run(exported, "--baseline", exported.parent / exported.name, "--sts", "sts.jsonl")[0] == 65
    assert loaded == [(exported, "float32")] * 2
