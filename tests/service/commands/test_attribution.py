"""`attendant evaluate --attribution`: word rankings compared with a naive implementation, and errors."""

import asyncio
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attendant_client.types import AttendRequest, EncodeRequest, Input, SimilarityRequest, Token, TokenizeRequest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.commands.measures import top_precision
from service.config import Settings
from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from tests.manifests import with_kinds, with_manifest
from tests.running import run
from tests.service.commands.evaluate_command import ATTRIBUTION, Evaluate, Run
from tests.service.conftest import open_harness

Floats = NDArray[Any]
SECRET = "swordfish"
LINES = [
    {
        "text": "The unaffable miller counts his money, swiftly.",
        "word_index": 1,
        "deciding_index": [2, 4],
        "reference": "Seven boats!",
    },
    {"text": "déjà vu: don't count on it", "word_index": 3, "deciding_index": 0},
    {"text": "a b c", "word_index": 2, "deciding_index": 1, "reference": "Grüße, 😀 bells"},
    {"text": "the the the the bank", "word_index": 4, "deciding_index": [1, 2], "reference": "the bank"},
]
MAPS = {
    f"{kind}_{name}": {"kind": kind, "head_reduce": head_reduce, "layer_reduce": layer_reduce, "layers": layers}
    for kind, head_reduce in (("probs", "mean"), ("norm", "sum"), ("block_norm", "none"), ("projection", "none"))
    for name, layer_reduce, layers in (
        ("last_layer", "none", (-1,)), ("mean_of_layers", "mean", "all"), ("rollout", "rollout", "all"),
    )
}  # fmt: skip


def write(lines: Sequence[dict[str, Any]]) -> None:
    Path("lines.jsonl").write_text("\n".join(map(json.dumps, lines)))


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=8))
def test_precision_of_equal_effects_is_its_expected_value(words: list[tuple[int, bool]]) -> None:
    first = [decides for effect, decides in words if effect == max(effect for effect, _ in words)]
    scores, deciding = np.array([word[0] for word in words], np.float64), np.array([word[1] for word in words])
    assert top_precision(scores, deciding) == pytest.approx(float(Fraction(sum(first), len(first))))


def precision(scores: dict[int, float], line: dict[str, Any]) -> float:
    """Return the precision@1 over the words other than the target."""
    deciding = line["deciding_index"] if isinstance(line["deciding_index"], list) else [line["deciding_index"]]
    others = {word: score for word, score in scores.items() if word != line["word_index"]}
    largest = max(others.values())
    tolerance = 2e-6 * max(1, abs(largest))
    first = [word for word, score in others.items() if score > largest - tolerance]
    return sum(word in deciding for word in first) / len(first)


async def embed(engine: Engine, ids: tuple[int, ...] | None, text: str = "", output: str = "pooled") -> Floats:
    item = Input(text) if ids is None else Input(token_ids=ids)
    (result,) = (await run(engine, EncodeRequest((item,), outputs=(output,), prompt=""))).results  # type: ignore[arg-type]
    array = result.pooled if output == "pooled" else result.token_vectors
    assert array is not None
    return array.astype(np.float64)


def cosine(left: Floats, right: Floats) -> float:
    return float(left @ right / np.linalg.norm(left) / np.linalg.norm(right))


async def naive(engine: Engine, line: dict[str, Any]) -> dict[str, float]:
    """Return each method's precision@1 from token maps, with one request per line and method."""
    target = line["word_index"]
    source = Input(line["text"])
    (tokenized,) = (await run(engine, TokenizeRequest((source,)))).results
    tokens: list[Token] = tokenized.tokens
    positions = {
        word: [index for index, token in enumerate(tokens) if token.word_index == word]
        for word in range(len(tokenized.words))
    }
    ids = [token.id for token in tokens]
    precisions = {}
    for name, fields in MAPS.items():
        (result,) = (await run(engine, AttendRequest((source,), **fields), wire="binary")).results  # type: ignore[arg-type]
        assert result.maps[0].matrix is not None
        row = result.maps[0].matrix[positions[target]].astype(np.float64).mean(axis=0)
        scores = {word: abs(float(row[own].sum())) for word, own in positions.items()}
        largest = max(score for word, score in scores.items() if word != target)
        precisions[name] = precision({word: score / largest for word, score in scores.items()}, line)

    async def target_vector(without: int | None) -> Floats:
        kept = [index for index in range(1, len(ids) - 1) if tokens[index].word_index != without]
        hidden = await embed(engine, tuple(ids[index] for index in kept), output="tokens")
        own = [place for place, index in enumerate(kept, 1) if index in positions[target]]
        vector: Floats = hidden[own].mean(axis=0)
        return vector

    whole = await target_vector(None)
    distances = {word: 1 - cosine(whole, await target_vector(word)) for word in positions if word != target}
    precisions["occlusion"] = precision(distances, line)
    if "reference" not in line:
        return precisions
    text, reference = await embed(engine, None, line["text"]), await embed(engine, None, line["reference"])
    effects = {}
    for word in positions:
        kept_ids = tuple(token.id for token in tokens[1:-1] if token.word_index != word)
        effects[word] = cosine(text, reference) - cosine(await embed(engine, kept_ids), reference)
    precisions["similarity_occlusion"] = precision(effects, line)
    hidden = await embed(engine, None, line["text"], "tokens")
    left_out = {word: np.delete(hidden, own, axis=0).mean(axis=0) for word, own in positions.items()}
    precisions["similarity_leave_one_out"] = precision(
        {word: cosine(text, reference) - cosine(vector, reference) for word, vector in left_out.items()}, line
    )
    (pair,) = (await run(engine, SimilarityRequest((line["text"],), (line["reference"],), explain=True))).pairs or []
    assert pair.matrix is not None
    by_token = pair.matrix.sum(axis=1)
    precisions["similarity_contributions"] = precision(
        {word: float(by_token[np.array(own) - 1].sum()) for word, own in positions.items()}, line
    )
    return precisions


@pytest.mark.parametrize("name", [pytest.param("default_artifact", marks=pytest.mark.slow), "exported"])
def test_precisions_match_a_naive_implementation(
    default_artifact: Path, exported: Path, evaluate: Evaluate, name: str
) -> None:
    """Covers words with one and with several tokens, in a trained and in a random model."""
    artifact = default_artifact if name == "default_artifact" else exported
    lines = [*LINES, *map(json.loads, ATTRIBUTION.splitlines())] if name == "default_artifact" else LINES
    write(lines)
    result = evaluate(artifact, "--attribution", "lines.jsonl")["attribution"]
    model = LoadedModel.load(Settings(model_dir=artifact, precision="float32"))

    async def precisions() -> list[dict[str, float]]:
        async with open_harness(model) as harness:
            return [await naive(harness.engine, line) for line in lines]

    expected = asyncio.run(precisions())
    assert result["methods"].keys() == expected[0].keys()
    for method, estimate in result["methods"].items():
        values = [by_method[method] for by_method in expected if method in by_method]
        assert estimate["value"] == pytest.approx(np.mean(values)), method
        assert estimate["low"] <= estimate["value"] <= estimate["high"]
    assert (result["lines"], result["omitted"]) == (len(lines), {})
    assert result["references"] == sum("reference" in line for line in lines)


def test_unsupported_methods_are_omitted(run: Run, evaluate: Evaluate, exported_labse: Path) -> None:
    """The model has cls pooling, nonlinear dense layers, and a query prompt."""
    write(LINES)
    result = evaluate(exported_labse, "--attribution", "lines.jsonl")["attribution"]
    assert [*result["methods"]][-2:] == ["occlusion", "similarity_occlusion"]
    assert result["omitted"] == {
        "similarity_leave_one_out": "not defined for cls pooling",
        "similarity_contributions": "not defined for nonlinear dense layers",
    }
    _, out, _ = run(exported_labse, "--attribution", "lines.jsonl")
    assert "\nomitted    similarity leave_one_out: not defined for cls pooling\n" in out


def test_missing_kinds_are_omitted(evaluate: Evaluate, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = LoadedModel.load

    def load_with_probs_only(*arguments: Any, **options: Any) -> LoadedModel:
        model = load(*arguments, **options)
        return with_manifest(model, with_kinds(model.artifact.manifest, "probs"))

    monkeypatch.setattr(LoadedModel, "load", load_with_probs_only)
    write([LINES[1]])
    result = evaluate(exported, "--attribution", "lines.jsonl")["attribution"]
    assert [*result["methods"]] == ["probs_last_layer", "probs_mean_of_layers", "probs_rollout", "occlusion"]
    assert [*result["omitted"]] == ["norm", "block_norm", "projection"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"word_index": 9}, "word_index: out of range (9, limit 2). Use 0 to 2."),
        ({"deciding_index": [0, 7]}, "deciding_index[1]: out of range (7, limit 2). Use 0 to 2."),
        ({"deciding_index": [0, 1]}, "deciding_index: all other words of the text (2, limit 1). Remove words or the"),
        ({"text": "a \u200b c"}, "deciding_index[0]: word without tokens (1). Use another word."),
        (
            {"text": "word " * 90, "deciding_index": 80},
            "deciding_index[0]: removed by truncation (80, limit ",
        ),
        ({"text": "\u200b"}, "text: no content after tokenization."),
        ({"reference": "\u200b"}, "reference: no content after tokenization."),
        ({"text": "long " * 5000}, "text: too many characters ("),
        ({"reference": "long " * 5000}, "reference: too many characters ("),
    ],
)
def test_line_without_ranking_is_named(run: Run, exported: Path, change: dict[str, Any], problem: str) -> None:
    line = {"text": f"a b {SECRET}", "word_index": 2, "deciding_index": 1}
    write([LINES[1], line | change])
    status, out, err = run(exported, "--attribution", "lines.jsonl")
    assert (status, out, SECRET in err, err.count("\n")) == (65, "", False, 1)
    assert err.startswith(f"attendant evaluate: lines.jsonl: line 2: {problem}")
