"""`attendant evaluate --save`: manifest records, the new digest, and all combinations of options."""

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import validate

from model.artifact.files import Artifact, update_manifest
from model.artifact.manifest import EvaluationRecord
from service.commands import measures
from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.conftest import EXAMPLES
from tests.service.commands.evaluate_command import SCHEMA, Evaluate, Run
from tests.service.conftest import open_harness

FILES = {
    "sts": "sts.jsonl", "retrieval": "retrieval.jsonl", "word-in-context": "words.jsonl",
    "attribution": "attribution.jsonl",
}  # fmt: skip


@pytest.fixture
def artifact(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "artifact"))


def saved_records(artifact: Path) -> dict[tuple[str, str, str], EvaluationRecord]:
    records = Artifact.open(artifact).manifest.evaluations
    by_name = {(record.task, record.file, record.measure): record for record in records}
    assert len(by_name) == len(records)
    return by_name


def test_measures_are_saved_and_served(evaluate: Evaluate, artifact: Path) -> None:
    before = Artifact.open(artifact)
    options = [value for task, file in FILES.items() for value in (f"--{task}", file)]
    result = evaluate(artifact, *options, "--top-k", 3, "--save")
    records = saved_records(artifact)
    assert result["saved"] == {"digest": f"sha256:{Artifact.open(artifact).digest}", "measures": len(records)}
    assert result["model"]["digest"] == f"sha256:{before.digest}"
    assert [*records][:5] == [
        ("sts", "sts.jsonl", "Spearman"), ("sts", "sts.jsonl", "Pearson"),
        ("retrieval", "retrieval.jsonl", "recall@3"), ("retrieval", "retrieval.jsonl", "nDCG@10"),
        ("retrieval", "retrieval.jsonl", "MRR"),
    ]  # fmt: skip
    for name, estimate in (
        (("sts", "sts.jsonl", "Pearson"), result["sts"]["pearson"]),
        (("word-in-context", "words.jsonl", "AUC, contextual"), result["word_in_context"]["contextual"]["auc"]),
        (
            ("attribution", "attribution.jsonl", "precision@1, norm rollout"),
            result["attribution"]["methods"]["norm_rollout"],
        ),
    ):
        record = records[name]
        assert [record.value, record.low, record.high] == [
            pytest.approx(estimate[bound], abs=5e-5) for bound in ("value", "low", "high")
        ]
    model = LoadedModel.load(Settings(model_dir=artifact, model_digest=result["saved"]["digest"]))

    async def serve() -> Any:
        async with open_harness(model) as harness:
            encoded = await harness.post("/v1/encode", {"inputs": ["money bank"]})
            return (await harness.client.get("/v1/model")).json(), encoded.status_code

    served, status = asyncio.run(serve())
    assert (served["digest"], status) == (result["saved"]["digest"], 200)


def test_saving_again_keeps_the_digest_and_replaces_records(run: Run, evaluate: Evaluate, artifact: Path) -> None:
    options = ("--sts", "sts.jsonl", "--save")
    first = evaluate(artifact, *options)["saved"]
    assert evaluate(artifact, *options)["saved"] == first
    other = json.loads(Path("sts.jsonl").read_text().splitlines()[0]) | {"score": 0.1}
    with Path("sts.jsonl").open("a") as file:
        file.write(json.dumps(other) + "\n")
    assert run(artifact, "--retrieval", "retrieval.jsonl", "--top-k", 3, "--save")[0] == 0
    before = saved_records(artifact)
    changed = evaluate(artifact, *options)
    after = saved_records(artifact)
    assert changed["saved"]["digest"] != first["digest"]
    assert [*after] == [*before]
    assert after["sts", "sts.jsonl", "Pearson"].value == pytest.approx(changed["sts"]["pearson"]["value"], abs=5e-5)
    assert after["retrieval", "retrieval.jsonl", "MRR"] == before["retrieval", "retrieval.jsonl", "MRR"]


def test_measure_that_is_no_longer_defined_is_removed(run: Run, artifact: Path) -> None:
    assert run(artifact, "--sts", "sts.jsonl", "--save")[0] == 0
    lines = [{"text1": "same", "text2": "same", "score": score} for score in range(4)]
    Path("sts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    status, out, _ = run(artifact, "--sts", "sts.jsonl", "--save")
    assert (status, saved_records(artifact)) == (0, {})
    assert "\nsaved      0 measures; the digest of the artifact is now sha256:" in out


def test_unwritable_directory_is_reported_before_any_model_is_loaded(
    run: Run, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadedModel, "load", None)
    monkeypatch.setattr("os.access", lambda path, _: path != artifact)
    status, out, err = run(artifact, "--sts", "sts.jsonl", "--save")
    assert (status, out) == (78, "")
    assert err == f"attendant: {artifact}: not writable. Change its permissions or copy the artifact.\n"


@pytest.mark.parametrize("json_option", [(), ("--json",)])
def test_failed_save_prints_the_measures_and_one_error(
    run: Run, artifact: Path, monkeypatch: pytest.MonkeyPatch, json_option: tuple[str, ...]
) -> None:
    digest = Artifact.open(artifact).digest

    def replace(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.replace", replace)
    status, out, err = run(artifact, "--sts", "sts.jsonl", "--save", *json_option)
    assert (status, err.count("\n")) == (78, 1)
    assert err.startswith(f"attendant: {artifact}: cannot be written (Permission denied). Check permissions")
    assert "earson" in out
    assert ("saved      " in out) is False
    assert Artifact.open(artifact).digest == digest


def test_artifact_that_changed_during_the_evaluation_is_not_changed_again(
    run: Run, artifact: Path, exported_labse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exchange(root: Path, change: Any) -> str:
        shutil.rmtree(root)
        shutil.copytree(exported_labse, root)
        return update_manifest(root, change)

    monkeypatch.setattr("service.commands.evaluate.update_manifest", exchange)
    status, _, err = run(artifact, "--sts", "sts.jsonl", "--save")
    assert (status, err) == (78, f"attendant: {artifact}: changed during the evaluation. Run the command again.\n")
    assert Artifact.open(artifact).digest == Artifact.open(exported_labse).digest


@settings(
    max_examples=EXAMPLES // 10,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # every example loads a model
@given(
    tasks=st.sets(st.sampled_from([*FILES]), min_size=1),
    baseline=st.booleans(),
    save=st.booleans(),
    as_json=st.booleans(),
)
def test_options_combine(
    run: Run, artifact: Path, exported: Path, monkeypatch: pytest.MonkeyPatch,
    *, tasks: set[str], baseline: bool, save: bool, as_json: bool,
) -> None:  # fmt: skip
    """Every task must add its figures and every option its part of the output. Only --save may change the artifact."""
    monkeypatch.setattr(measures, "RESAMPLES", 20)
    before = Artifact.open(artifact).digest
    options: list[object] = [value for task in sorted(tasks) for value in (f"--{task}", FILES[task])]
    options += ["--baseline", exported] * baseline + ["--save"] * save + ["--json"] * as_json
    options += ["--top-k", 3] * ("retrieval" in tasks)
    status, out, err = run(artifact, *options)
    assert (status, re.sub(r"attendant: .* encoded .* texts\n", "", err)) == (0, "")
    digest = Artifact.open(artifact).digest
    assert save or digest == before
    if save:
        assert {task for task, _, _ in saved_records(artifact)} >= tasks
    if not as_json:
        assert (f"digest of the artifact is now sha256:{digest}\n" in out) == save
        assert ("\nbaseline   " in out) == baseline
        return
    result = json.loads(out)
    validate(result, SCHEMA)
    names = {task.replace("-", "_") for task in tasks}
    assert {name for name in ("sts", "retrieval", "word_in_context", "attribution") if result[name]} == names
    assert {*result["files"]} == names
    assert (result["saved"] is not None, result["baseline"] is not None) == (save, baseline)
    if baseline:
        assert {name for name, figures in result["difference"].items() if figures} == names
    if save:
        assert result["saved"]["digest"] == f"sha256:{digest}"
