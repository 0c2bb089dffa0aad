"""Fixtures that run `attendant evaluate` on the files from the documentation."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from tests.conftest import ROOT
from tests.service.commands.running import run_command

DOCUMENT = (ROOT / "docs" / "evaluation.md").read_text()
STS, RETRIEVAL, WORDS, ATTRIBUTION = re.findall(r"```json\n(.*?)```", DOCUMENT, re.DOTALL)
(OUTPUT,) = re.findall(r"```text\n(.*?)```", DOCUMENT, re.DOTALL)

Run = Callable[..., tuple[int, str, str]]
Evaluate = Callable[..., Any]

NUMBER = {"type": ["number", "null"]}
ESTIMATE = {
    "type": "object", "required": ["value", "low", "high"], "additionalProperties": False,
    "properties": {"value": NUMBER, "low": NUMBER, "high": NUMBER},
}  # fmt: skip


def record(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with exactly these properties, or null."""
    return {
        "type": ["object", "null"], "required": [*properties], "additionalProperties": False, "properties": properties
    }  # fmt: skip


COUNT = {"type": "integer"}
SENSES = record(accuracy=ESTIMATE, thresholds={"type": "array", "items": NUMBER}, auc=ESTIMATE)
FILE = record(file={"type": "string"}, lines_read=COUNT, complete={"type": "boolean"})
MODEL = {"type": "object", "required": ["name", "digest", "precision", "similarity", "truncated"]}
TASKS = {
    "sts": record(pairs=COUNT, spearman=ESTIMATE, pearson=ESTIMATE),
    "retrieval": record(queries=COUNT, documents=COUNT, top_k=COUNT, recall=ESTIMATE, ndcg=ESTIMATE, mrr=ESTIMATE),
    "word_in_context": record(pairs=COUNT, majority=NUMBER, contextual=SENSES, static=SENSES),
    "attribution": record(
        lines=COUNT, references=COUNT, chance=NUMBER, reference_chance=NUMBER,
        methods={"type": "object", "additionalProperties": ESTIMATE},
        omitted={"type": "object", "additionalProperties": {"type": "string"}},
    ),
}  # fmt: skip
DIFFERENCE = {
    "sts": record(spearman=ESTIMATE, pearson=ESTIMATE),
    "retrieval": record(recall=ESTIMATE, ndcg=ESTIMATE, mrr=ESTIMATE),
    "word_in_context": record(
        contextual=record(accuracy=ESTIMATE, auc=ESTIMATE), static=record(accuracy=ESTIMATE, auc=ESTIMATE)
    ),
    "attribution": record(methods={"type": "object", "additionalProperties": ESTIMATE}),
}
SCHEMA = record(
    model=MODEL, files={"type": "object", "additionalProperties": FILE}, **TASKS,
    saved=record(digest={"type": "string"}, measures=COUNT),
    baseline=record(model=MODEL, **TASKS), difference=record(**DIFFERENCE),
)  # fmt: skip


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the command in a directory with the files from the documentation, in float32."""
    monkeypatch.setenv("ATTENDANT_PRECISION", "float32")
    monkeypatch.chdir(tmp_path)
    for name, body in (("sts", STS), ("retrieval", RETRIEVAL), ("words", WORDS), ("attribution", ATTRIBUTION)):
        (tmp_path / f"{name}.jsonl").write_text(body)

    return partial(run_command, capsys, "evaluate")


@pytest.fixture
def evaluate(run: Run) -> Evaluate:

    def evaluate(*arguments: object) -> Any:
        status, out, err = run(*arguments, "--json")
        assert status == 0, err
        assert not re.sub(r"attendant: .* encoded .* texts\n", "", err)  # busy machines print progress
        result = json.loads(out)
        validate(result, SCHEMA)
        return result

    return evaluate
