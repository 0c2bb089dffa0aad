"""`attendant compare`: figures, thresholds, output and errors."""

import asyncio
import itertools
import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attendant_client.types import EncodeResponse
from numpy.typing import NDArray
from scipy.stats import spearmanr

from model.export.export import Variants, export
from service.commands.sources import TextEncoder
from service.config import Settings
from service.engine.backends.cpu import detect_cpu
from service.engine.model_loader import LoadedModel
from tests.service.commands.running import run_command
from tests.service.conftest import encode, open_harness

SUBJECTS = ("The river bank", "A small dog", "Her brother", "The old bank in town", "Nobody at the mill", "It")
VERBS = ("lost the key to", "slowly moved toward", "never paid for", "was painted beside", "remembered", "grew under")
OBJECTS = (
    "the bridge",
    "seven gray boats",
    "a loan of 300 dollars",
    "the long winter",
    "an empty house",
    "bread and salt",
)


def make_sentences(count: int) -> list[str]:
    """Return sentences of one to five clauses, the same on every machine, because ranks must not depend on it.

    The first clauses are distinct, because a tiny model truncates.
    """
    choose = random.Random(4)
    clauses = [" ".join(words) for words in itertools.product(SUBJECTS, VERBS, OBJECTS)]
    firsts = choose.sample(clauses, count)
    return [", and ".join([first, *choose.choices(clauses, k=index % 5)]) + "." for index, first in enumerate(firsts)]


SENTENCES = make_sentences(60)
SECRET = "the password is swordfish"

Run = Callable[..., tuple[int, str, str]]
Compare = Callable[..., tuple[int, Any, str]]

needs_vnni = pytest.mark.skipif(not detect_cpu().vnni, reason="this CPU has no VNNI")
needs_bfloat16 = pytest.mark.skipif(not detect_cpu().bfloat16, reason="this CPU has no bfloat16 support")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A file of sentences. None of them may be printed."""
    path = tmp_path / "texts.txt"
    path.write_text("\n".join([*SENTENCES, SECRET]) + "\n")
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in float32; return status, stdout and stderr."""
    monkeypatch.setenv("ATTENDANT_PRECISION", "float32")

    return partial(run_command, capsys, "compare")


@pytest.fixture
def compare(run: Run) -> Compare:
    """Run the command with --json; return status, result and stderr."""

    def compare(*arguments: object) -> tuple[int, Any, str]:
        status, out, err = run(*arguments, "--json")
        return status, json.loads(out), err

    return compare


def embed_texts(artifact: Path, texts: list[str], **fields: Any) -> NDArray[np.float64]:
    """Return normalized embeddings, (N, D), from an engine in float32; long texts are truncated."""
    model = LoadedModel.load(Settings(model_dir=artifact, precision="float32"))

    async def encode_all() -> EncodeResponse:
        async with open_harness(model) as harness:
            return await encode(harness.engine, *texts, truncation="right", **fields)

    results = asyncio.run(encode_all()).results
    rows = np.array([result.pooled for result in results if result.pooled is not None], np.float64)
    normalized: NDArray[np.float64] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return normalized


def nearest_neighbors(similarities: NDArray[np.float64], k: int) -> list[list[int]]:
    """Return the indices of the k largest values per row, after checking that there are no near ties."""
    ordered = -np.sort(-similarities, axis=1)
    gaps = np.minimum(ordered[:, 0] - ordered[:, 1], ordered[:, k - 1] - ordered[:, k])
    assert gaps.min() > 1e-5, "rounding decides which neighbors are nearest: use other sentences"
    indices: list[list[int]] = np.argsort(-similarities, axis=1)[:, :k].tolist()
    return indices


@pytest.mark.slow
@needs_bfloat16
def test_precisions_of_one_artifact_are_compared(compare: Compare, default_artifact: Path, texts: Path) -> None:
    options = ("--old-precision", "float32", "--new-precision", "bfloat16", "--top-k", "5")
    status, result, err = compare(default_artifact, default_artifact, "--texts", texts, *options)
    assert (status, err) == (0, "")
    assert [result[side]["precision"] for side in ("old", "new")] == ["float32", "bfloat16"]
    cosine = result["cosine"]
    assert 0.9999 <= cosine["min"] <= cosine["p1"] <= cosine["p5"] <= cosine["median"] <= 1
    assert 0.9999 <= cosine["mean"] < 1
    assert 0.95 <= result["ranks"]["mean_overlap"] <= 1
    assert result["lowest_cosines"][0]["value"] == cosine["min"]
    assert len(result["lowest_cosines"]) == 10


@needs_bfloat16
@pytest.mark.parametrize(
    ("cosine", "overlap", "missed"),
    [("1", "0.5", ["--min-cosine"]), ("0.9999", "1", ["--min-overlap"])],
)
def test_missed_threshold_is_named_and_exits_with_1(
    run: Run, default_artifact: Path, texts: Path, cosine: str, overlap: str,
    missed: list[str],
) -> None:  # fmt: skip
    """With 30 neighbors among 61 texts, bfloat16 changes some."""
    options = ("--new-precision", "bfloat16", "--top-k", "30", "--min-cosine", cosine, "--min-overlap", overlap)
    status, out, err = run(default_artifact, default_artifact, "--texts", texts, *options)
    assert status == (1 if missed else 0)
    assert [line.split(": ")[1] for line in err.splitlines()] == missed
    assert all(f"limit {cosine if option == '--min-cosine' else overlap})." in err for option in missed)
    assert [line.split()[1] for line in out.splitlines() if "MISSED" in line] == missed


@pytest.mark.slow
def test_ranks_of_models_with_other_dimensions_equal_brute_force(
    compare: Compare, default_artifact: Path, exported: Path, texts: Path
) -> None:
    status, result, err = compare(default_artifact, exported, "--texts", texts, "--top-k", 7)
    assert (status, err, result["cosine"], result["lowest_cosines"]) == (0, "", None, [])
    assert [result[side]["dimensions"] for side in ("old", "new")] == [384, 24]
    assert result["new"]["truncated"] > 0 == result["old"]["truncated"]
    sentences = [*SENTENCES, SECRET]
    vectors = [embed_texts(artifact, sentences) for artifact in (default_artifact, exported)]
    neighbors = [nearest_neighbors(np.where(np.eye(61), -np.inf, side @ side.T), 7) for side in vectors]
    pairs = list(zip(*neighbors, strict=True))
    overlaps = [len({*old} & {*new}) / 7 for old, new in pairs]
    assert result["ranks"]["mean_overlap"] == pytest.approx(np.mean(overlaps))
    assert result["ranks"]["changed_first"] == pytest.approx(np.mean([old[0] != new[0] for old, new in pairs]))
    left, right = np.triu_indices(61, 1)
    expected = spearmanr(*(np.round((side @ side.T)[left, right], 6) for side in vectors)).statistic
    assert result["ranks"]["spearman"] == pytest.approx(expected, abs=1e-4)
    assert result["lowest_overlaps"][0] == {"line": int(np.argmin(overlaps)) + 1, "value": min(overlaps)}


@pytest.mark.slow
def test_queries_are_encoded_with_the_prompt_of_the_model(
    compare: Compare, default_artifact: Path, exported_labse: Path, texts: Path, tmp_path: Path
) -> None:
    """The old model has no prompts, the new one has a query prompt. A query may be equal to a text."""
    queries = tmp_path / "queries.txt"
    queries.write_text("\n".join(SENTENCES[:9]))
    status, result, _ = compare(default_artifact, exported_labse, "--texts", texts, "--queries", queries, "--top-k", 4)
    assert (status, result["queries"]["distinct"], result["ranks"]["pairs"]) == (0, 9, 9 * 61)
    sentences = [*SENTENCES, SECRET]
    old = embed_texts(default_artifact, SENTENCES[:9]) @ embed_texts(default_artifact, sentences).T
    asked = embed_texts(exported_labse, SENTENCES[:9], prompt_name="query")
    new = asked @ embed_texts(exported_labse, sentences).T
    pairs = list(zip(nearest_neighbors(old, 4), nearest_neighbors(new, 4), strict=True))
    assert result["ranks"]["mean_overlap"] == pytest.approx(np.mean([len({*a} & {*b}) / 4 for a, b in pairs]))


def test_output_has_line_numbers_and_texts_on_request_only(
    run: Run, default_artifact: Path, exported_labse: Path, texts: Path
) -> None:
    arguments = (default_artifact, exported_labse, "--texts", texts, "--top-k", 50)
    status, out, err = run(*arguments)
    assert (status, err) == (0, "")
    assert not [sentence for sentence in (*SENTENCES, SECRET) if sentence in out]
    lines = out.splitlines()
    assert lines[0].startswith(
        "old        all-MiniLM-L6-v2, float32 (openvino), 384 dimensions, cosine similarity, sha"
    )
    assert lines[2] == "texts      61 distinct of 61 lines"
    assert "cosine     not defined, because the dimensions differ (384 and 19)" in lines
    assert next(line for line in lines if line.startswith("lowest overlap: line "))
    shown = run(*arguments, "--show-texts")[1]
    assert [sentence for sentence in (*SENTENCES, SECRET) if sentence in shown]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "empty. Add lines."),
        (b"one\n", "too few distinct texts (1, limit 3). Add texts."),
        (b"one\ntwo\none\n", "too few distinct texts (2, limit 3). Add texts."),
        (b"one\n\nthree", "line 2: empty or blank. Remove it."),
        (b"one\n\xff", "line 2: not UTF-8. Send text in UTF-8."),
    ],
)
def test_unusable_texts_are_named_before_any_model_is_loaded(
    run: Run, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes, problem: str
) -> None:
    monkeypatch.setattr(LoadedModel, "load", None)
    texts = tmp_path / "texts.txt"
    texts.write_bytes(body)
    assert run(exported, exported, "--texts", texts) == (65, "", f"attendant compare: {texts}: {problem}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--top-k", "60"), "--top-k: too many for the texts (60, limit 59)"),
        (("--top-k", "0"), "--top-k: out of range (0, minimum 1). Use 1 to 1000"),
        (("--limit", "1000001"), "--limit: out of range (1e+06, limit 100000). Use 1 to 100000"),
        (("--min-cosine", "2"), "--min-cosine: out of range (2, limit 1). Use -1 to 1"),
        (("--min-overlap", "nan"), '--min-overlap: not a number ("nan"). Use 0 to 1'),
        (("--new-precision", "fp8"), "--new-precision: invalid choice: 'fp8'"),
        (("--max-cosine", "1"), "unknown option --max-cosine (did you mean --min-cosine?)"),
    ],
)
def test_invalid_option_is_named_before_any_model_is_loaded(
    run: Run, exported: Path, texts: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr(LoadedModel, "load", None)
    status, out, err = run(exported, exported, "--texts", texts, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("attendant compare: ")
    assert message in err


def test_min_cosine_requires_equal_dimensions(run: Run, exported: Path, exported_labse: Path, texts: Path) -> None:
    status, _, err = run(exported, exported_labse, "--texts", texts, "--min-cosine", "0.5")
    assert (status, "requires equal dimensions (OLD has 24, NEW 19). Use --min-overlap" in err) == (2, True)


def test_line_over_the_character_limit_is_named(run: Run, exported: Path, tmp_path: Path) -> None:
    """Truncation does not help against this limit, and the text must not be printed."""
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join([*SENTENCES[:40], "long " * 5000]))
    status, out, err = run(exported, exported, "--texts", texts)
    assert (status, out) == (65, "")
    assert f"{texts}: line 41: too many characters (" in err
    assert "). Split the text. Truncation does not apply" in err
    assert "long long" not in err


@needs_vnni
def test_int8_is_compared_with_float32(compare: Compare, published: Path, texts: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "int8"
    export(str(published), artifact, revision=None, name=None, progress=lambda _: None, variants=Variants(("int8",)))
    status, result, _ = compare(artifact, artifact, "--texts", texts, "--new-precision", "int8", "--min-cosine", "0.9")
    assert (status, result["old"]["precision"], result["new"]["precision"]) == (0, "float32", "int8")
    assert 0.9 < result["cosine"]["min"] < 1


async def test_progress_is_reported_for_long_work_only(
    model: LoadedModel, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_harness(model) as harness:
        encoder = TextEncoder(harness.engine, "new")
        encoder.report(Path("texts.txt"), 32, 5000)
        assert capsys.readouterr().err == ""
        monkeypatch.setattr("service.commands.sources.PROGRESS_INTERVAL_S", 0.0)
        encoder.report(Path("texts.txt"), 1234, 5000)
    assert capsys.readouterr().err == "attendant: new: texts.txt: encoded 1,234 of 5,000 texts\n"
