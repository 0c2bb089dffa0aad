"""From texts to a served artifact: the full-size examples, run with the commands in docs/training.md."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from model.examples.ambiguous_words import AMBIGUOUS
from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.conftest import ROOT
from tests.serving import ServiceThread

pytestmark = pytest.mark.slow

BLOCKS = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "training.md").read_text(), re.DOTALL)
PROGRAMS = {".venv/bin/attendant-model": "model", ".venv/bin/attendant": "service"}


def run_block(name: str, directory: Path, default_artifact: Path, parts: str = "") -> dict[str, Any]:
    """Run a block's commands with an example, in `directory`; return the JSON printed by `attendant evaluate`.

    `parts`: options of the encoder of `masked.toml`.
    """
    (block,) = [block for block in BLOCKS if f"example {name}" in block]
    output = ""
    for command in block.replace("\\\n", "").strip().splitlines():
        program, *arguments = command.split()
        arguments = [str(default_artifact) if "MiniLM" in argument else argument for argument in arguments]
        if arguments[0] == "evaluate":
            arguments += ["--json", "--save"]
        # Use one thread: on a busy machine, two that wait for each other are slow.
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        completed = subprocess.run(
            [sys.executable, "-m", PROGRAMS[program], *arguments],
            cwd=directory, env=environment, check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert completed.returncode == 0, completed.stderr
        output = completed.stdout
        if arguments[0] == "example" and parts:
            config = directory / arguments[-1] / "masked.toml"
            config.write_text(config.read_text().replace("[model]\n", f"[model]\n{parts}"))
    result: dict[str, Any] = json.loads(output)
    return result


def test_language_with_known_truth(tmp_path: Path, default_artifact: Path) -> None:
    """Runs train, export, evaluate, serve, compare, attend and similarity."""
    evaluation = run_block("ambiguous-words", tmp_path, default_artifact)
    words = evaluation["word_in_context"]
    assert words["contextual"]["accuracy"]["value"] >= 0.95
    assert words["static"]["accuracy"]["low"] <= 0.5 <= words["static"]["accuracy"]["high"]
    check_attribution(evaluation["attribution"])
    artifact = tmp_path / "runs" / "words" / "words" / "artifact"
    lines = (tmp_path / "runs" / "words" / "attribution.jsonl").read_text().splitlines()
    model = LoadedModel.load(Settings(model_dir=artifact))
    with ServiceThread(model) as service, httpx.Client(base_url=service.rest) as client:
        check_model_card(client.get("/v1/model").json())
        check_requests(client, [json.loads(line) for line in lines])


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


def check_requests(client: httpx.Client, lines: list[dict[str, Any]]) -> None:
    """Check that word vectors group by sense, that the word attends to the deciding word, and that similarity is
    explained.
    """
    for word, topics in AMBIGUOUS.items():
        senses = [[line for line in lines if line["sense"] == f"{word}: {topic}"][:5] for topic in topics]
        words = [{"text": line["text"], "word_index": line["word_index"]} for sense in senses for line in sense]
        response = client.post("/v1/compare", json={"occurrences": words})
        assert response.status_code == 200, response.text
        last = response.json()["layers"][-1]["cosine"]
        same = [last[i][j] for i in range(10) for j in range(i) if (i < 5) == (j < 5)]
        other = [last[i][j] for i in range(10) for j in range(i) if (i < 5) != (j < 5)]
        assert np.mean(same) > np.mean(other) + 0.3, word
    request = {"unit": "word", "kind": "projection", "special_tokens": "drop", "layers": [-1]}
    first = lines[:100]
    response = client.post("/v1/attend", json=request | {"inputs": [line["text"] for line in first]})
    assert response.status_code == 200, response.text
    hits = 0
    for line, result in zip(first, response.json()["results"], strict=True):
        row = [abs(value) for value in result["maps"][0]["matrix"][line["word_index"]]]
        row[line["word_index"]] = 0
        hits += row.index(max(row)) == line["deciding_index"]
    assert hits >= 70
    texts = {"queries": [lines[0]["text"]], "documents": [lines[0]["reference"]]}
    response = client.post("/v1/similarity", json=texts | {"pairs": "zip", "explain": True, "unit": "word"})
    assert response.status_code == 200, response.text
    result = response.json()
    contributions = result["pairs"][0]["contributions"]
    assert len(contributions) == len(result["queries"][0]["units"])
    rest = sum(result["pairs"][0]["rest"].values())
    assert sum(map(sum, contributions)) + rest == pytest.approx(result["scores"][0], abs=1e-3)


def test_fine_tuning_raises_recall_of_the_default_model(tmp_path: Path, default_artifact: Path) -> None:
    evaluation = run_block("paraphrases", tmp_path, default_artifact)
    difference = evaluation["difference"]["retrieval"]["recall"]
    print("recall@1", evaluation["baseline"]["retrieval"]["recall"], evaluation["retrieval"]["recall"], difference)
    assert difference["low"] > 0.3
