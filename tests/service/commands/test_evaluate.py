"""attendant evaluate: measures, output, options, baselines and errors."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attendant_client.types import CompareRequest, Occurrence, SimilarityRequest
from scipy.stats import pearsonr, spearmanr

from service.commands import evaluate as evaluate_command
from service.commands.labeled_texts import TextError
from service.commands.measures import Flags, Values
from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.conftest import ROOT
from tests.running import run as run_operation
from tests.service.commands.evaluate_command import DOCUMENT, OUTPUT, RETRIEVAL, STS, WORDS, Evaluate, Run
from tests.service.conftest import open_harness

SECRET = "swordfish"


def records(body: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in body.splitlines()]


def similarities(artifact: Path, queries: list[str], documents: list[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return scores from /v1/similarity in float32, (Q, N)."""
    model = LoadedModel.load(Settings(model_dir=artifact, precision="float32"))

    async def score() -> Any:
        async with open_harness(model) as harness:
            return await run_operation(
                harness.engine, SimilarityRequest(tuple(queries), tuple(documents), truncation="right")
            )

    return np.array(asyncio.run(score()).scores, np.float64)


@pytest.mark.slow
def test_example_of_the_documentation_prints_its_output(run: Run, default_artifact: Path) -> None:
    (command,) = re.findall(r"```sh\n\S+attendant evaluate (.*?)```", DOCUMENT, re.DOTALL)
    directory, *options = command.replace("\\\n", "").split()
    assert ROOT / directory == default_artifact
    status, out, err = run(default_artifact, *options)
    problems = [line for line in err.splitlines() if "encoded" not in line]  # slow machines print progress
    assert (status, problems) == (0, [])
    assert out.splitlines()[1:] == OUTPUT.splitlines()[1:]
    assert out.startswith("model      all-MiniLM-L6-v2, float32 (")


def test_correlations_use_the_similarity_of_the_model(evaluate: Evaluate, default_artifact: Path) -> None:
    result = evaluate(default_artifact, "--sts", "sts.jsonl")
    pairs = records(STS)
    scores = similarities(default_artifact, *([pair[name] for pair in pairs] for name in ("text1", "text2"))).diagonal()
    labels = [pair["score"] for pair in pairs]
    assert result["sts"]["spearman"]["value"] == pytest.approx(spearmanr(scores, labels).statistic)
    assert result["sts"]["pearson"]["value"] == pytest.approx(pearsonr(scores, labels).statistic, abs=1e-5)
    assert (result["retrieval"], result["word_in_context"]) == (None, None)


def test_retrieval_uses_the_prompts_of_the_model(evaluate: Evaluate, exported_labse: Path) -> None:
    """Ranks must match /v1/similarity for a model with a query prompt."""
    result = evaluate(exported_labse, "--retrieval", "retrieval.jsonl", "--top-k", 2)["retrieval"]
    lines = records(RETRIEVAL)
    positives = [line["positive"] for line in lines if "query" in line]
    positives = [item if isinstance(item, list) else [item] for item in positives]
    documents = [text for texts in positives for text in texts] + [x["document"] for x in lines if "document" in x]
    scores = similarities(exported_labse, [line["query"] for line in lines if "query" in line], documents)
    first = [
        min(1 + int((row > row[documents.index(text)]).sum()) for text in texts)
        for row, texts in zip(scores, positives, strict=True)
    ]
    assert result["mrr"]["value"] == pytest.approx(np.mean([1 / rank for rank in first]))


def test_words_have_the_cosines_of_the_comparison(
    run: Run, default_artifact: Path, model: LoadedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Contextual and static cosines must match /v1/compare, including for multi-token words."""
    captured: list[Values] = []
    sense_figures = evaluate_command.sense_figures

    def capture(similarities: Values, same: Flags) -> dict[str, Any]:
        captured.append(similarities)
        return sense_figures(similarities, same)

    monkeypatch.setattr(evaluate_command, "sense_figures", capture)
    lines = [
        {
            "text1": "unaffable willows sway",
            "word_index1": 0,
            "text2": "a willow",
            "start2": 2,
            "end2": 8,
            "same": True,
        },
        *records(WORDS),
        {"text1": "Grüße, 😀 swiftly", "start1": 9, "end1": 16, "text2": "swift", "word_index2": 0, "same": False},
    ]
    (tmp_path / "words.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert run(default_artifact, "--word-in-context", "words.jsonl")[0] == 0

    def occurrence(line: dict[str, Any], side: int) -> Occurrence:
        word = line.get(f"word_index{side}")
        span = None if word is not None else (line[f"start{side}"], line[f"end{side}"])
        return Occurrence(line[f"text{side}"], span, word)

    async def compare() -> list[tuple[float, float]]:
        async with open_harness(model) as harness:
            result = []
            for line in lines:
                request = CompareRequest((occurrence(line, 1), occurrence(line, 2)), layers=(-1,), top_contributors=0)
                response = await run_operation(harness.engine, request)
                result.append((response.layers[0].cosine[0, 1], response.static[0, 1]))
            return result

    contextual, static = np.array(asyncio.run(compare())).T
    assert captured[0].tolist() == pytest.approx(contextual.tolist(), abs=2e-3)
    assert captured[1].tolist() == pytest.approx(static.tolist(), abs=2e-3)


def test_limit_and_truncation_are_reported(run: Run, exported: Path, tmp_path: Path) -> None:
    lines = [{"text1": "word " * (100 * score), "text2": "words and", "score": score} for score in range(1, 7)]
    (tmp_path / "sts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    status, out, _ = run(exported, "--sts", "sts.jsonl", "--limit", 4)
    assert (status, "file       sts: sts.jsonl, 4 lines; the file has more, see --limit" in out) == (0, True)
    assert re.search(r"^truncated  \d texts to \d+ tokens$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--sts, --retrieval, --word-in-context, --attribution: all missing. Set at least one. See"),
        (("--retrieval", "retrieval.jsonl", "--top-k", "9"), "too many for the documents (9, limit 8)"),
        (("--sts", "sts.jsonl", "--top-k", "9"), "--top-k: set without --retrieval. Remove it"),
        (("--sts", "sts.jsonl", "--limit", "100001"), "--limit: out of range (100001, limit 100000). Use 1 to 100000"),
        (("--sts", "sts.jsonl", "--precision", "fp8"), "--precision: invalid choice: 'fp8'"),
    ],
)  # fmt: skip
def test_invalid_option_is_named_before_any_model_is_loaded(
    run: Run, exported: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr(LoadedModel, "load", None)
    status, out, err = run(exported, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("attendant evaluate: ")
    assert message in err


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ({"word_index1": 2}, "line 5: word_index1: out of range (2, limit 1). Use 0 to 1."),
        ({"start1": 5, "end1": 6}, "line 5: start1: span without tokens. Move it or remove the line."),
        (
            {"start1": 995, "end1": 999, "text1": "word " * 200},
            "line 5: start1: removed by truncation. Shorten the text or remove the line.",
        ),
        ({"word_index1": 0, "text1": "\u200b"}, "line 5: text1: "),
    ],
)
def test_word_without_vector_is_named(
    run: Run, exported: Path, tmp_path: Path, word: dict[str, Any], problem: str
) -> None:
    line = {"text1": f"fresh {SECRET}", "text2": "b", "word_index2": 0, "same": True} | word
    (tmp_path / "words.jsonl").write_text("\n".join([*WORDS.splitlines()[2:6], json.dumps(line)]))
    status, out, err = run(exported, "--word-in-context", "words.jsonl")
    assert (status, out, SECRET in err, err.count("\n")) == (65, "", False, 1)
    assert err.startswith(f"attendant evaluate: words.jsonl: {problem}")


TOP_K: dict[str, tuple[object, ...]] = {"sts": (), "retrieval": ("--top-k", 3)}


@pytest.mark.parametrize("task", [*TOP_K])
def test_text_over_the_character_limit_is_named(run: Run, exported: Path, tmp_path: Path, task: str) -> None:
    long = "long " * 5000
    line = {"sts": {"text1": "a", "text2": long, "score": 1}, "retrieval": {"query": "a", "positive": long}}[task]
    body = {"sts": STS, "retrieval": RETRIEVAL}[task]
    (tmp_path / f"{task}.jsonl").write_text(body + json.dumps(line))
    status, out, err = run(exported, f"--{task}", f"{task}.jsonl", *TOP_K[task])
    field = {"sts": "text2", "retrieval": "positive"}[task]
    assert (status, out, "long long" in err) == (65, "", False)
    assert err.startswith(f"attendant evaluate: {task}.jsonl: line 9: {field}: too many characters (")


# `attendant evaluate --baseline`: measures of both artifacts, and their paired differences.

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
