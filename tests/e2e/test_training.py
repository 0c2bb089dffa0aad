"""From texts to a served artifact: the full-size examples, with the commands in docs/training.md, in this process."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from model.__main__ import main as train_main
from service.__main__ import main as service_main
from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.conftest import ROOT
from tests.serving import ServiceThread

pytestmark = pytest.mark.slow

BLOCKS = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "training.md").read_text(), re.DOTALL)
PROGRAMS = {".venv/bin/attendant-model": train_main, ".venv/bin/attendant": service_main}
ATTRIBUTION_LINES = 250
RunBlock = Callable[[str], dict[str, Any]]


@pytest.fixture
def run_block(
    tmp_path: Path, default_artifact: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> RunBlock:
    """Return a function that runs a block's commands with an example, and returns the JSON of `attendant evaluate`."""
    monkeypatch.chdir(tmp_path)

    def run(name: str) -> dict[str, Any]:
        (block,) = [block for block in BLOCKS if f"example {name}" in block]
        for command in block.replace("\\\n", "").strip().splitlines():
            program, *arguments = command.split()
            arguments = [str(default_artifact) if "MiniLM" in argument else argument for argument in arguments]
            if arguments[0] == "evaluate":
                arguments += ["--json", "--save"]
            capsys.readouterr()
            assert PROGRAMS[program](arguments) == 0, capsys.readouterr().err
            if arguments[0] == "example":
                shorten(tmp_path / arguments[-1])
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return run


def shorten(example: Path) -> None:
    """Shorten measurements that do not affect the trained weights: validation, and attribution."""
    for config in example.glob("*.toml"):
        config.write_text(f"{config.read_text()}validation_batches = 1\n")
    for path in example.glob("attribution.jsonl"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:ATTRIBUTION_LINES]))


def test_language_with_known_truth(run_block: RunBlock, tmp_path: Path) -> None:
    """Runs train, export, evaluate and serve."""
    evaluation = run_block("ambiguous-words")
    words = evaluation["word_in_context"]
    assert words["contextual"]["accuracy"]["value"] >= 0.95
    assert words["static"]["accuracy"]["low"] <= 0.5 <= words["static"]["accuracy"]["high"]
    check_attribution(evaluation["attribution"])
    artifact = tmp_path / "runs" / "words" / "words" / "artifact"
    model = LoadedModel.load(Settings(model_dir=artifact))
    with ServiceThread(model) as service, httpx.Client(base_url=service.rest) as client:
        check_model_card(client.get("/v1/model").json())


def check_attribution(attribution: dict[str, Any]) -> None:
    """Check the ranking of methods in docs/maps.md."""
    methods, chance = attribution["methods"], attribution["chance"]
    values = {name: method["value"] for name, method in methods.items()}
    print({name: round(value, 3) for name, value in values.items()}, "chance", round(chance, 3))
    for name in ("probs_last_layer", "norm_last_layer", "block_norm_last_layer", "projection_last_layer", "occlusion"):
        assert methods[name]["low"] > 4 * chance, name
    assert values["projection_rollout"] > values["probs_rollout"]
    assert values["projection_last_layer"] > values["similarity_contributions"] + 0.2


def check_model_card(info: dict[str, Any]) -> None:
    assert (info["name"], info["license"]) == ("ambiguous-words", "apache-2.0")
    assert info["training"]["objective"] == "contrastive learning"
    assert [file["name"] for file in info["training"]["data"]] == ["pairs.jsonl"]
    assert {record["task"] for record in info["evaluations"]} == {"word-in-context", "attribution"}


def test_fine_tuning_raises_recall_of_the_default_model(run_block: RunBlock) -> None:
    evaluation = run_block("paraphrases")
    difference = evaluation["difference"]["retrieval"]["recall"]
    print("recall@1", evaluation["baseline"]["retrieval"]["recall"], evaluation["retrieval"]["recall"], difference)
    assert difference["low"] > 0.3
