"""The list of well-known models: each config is read without an error and gives the published number of parameters."""

import subprocess
import sys

import pytest

from model.__main__ import main
from model.families import FAMILIES, find_family
from model.source.known_models import KNOWN_MODELS, MULTILINGUAL, OTHER_ARCHITECTURES, TASKS, KnownModel, list_models
from tests.model.known_encoders import count_parameters


@pytest.mark.parametrize("model", KNOWN_MODELS, ids=lambda model: model.hub_id)
def test_config_gives_the_published_number_of_parameters(model: KnownModel) -> None:
    assert count_parameters(model) / 1e6 == pytest.approx(model.millions, rel=0.006)


def test_every_architecture_is_listed() -> None:
    listed = {family.name for model in KNOWN_MODELS if (family := find_family(model.config))}
    assert listed | set(OTHER_ARCHITECTURES) == FAMILIES.keys()
    assert listed.isdisjoint(OTHER_ARCHITECTURES)


def test_command_lists_architectures_without_torch() -> None:
    code = "import sys; from model.__main__ import main; main(['list']); assert 'torch' not in sys.modules"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.splitlines() == list(list_models())
    assert "  Qwen/Qwen3-Embedding-0.6B" in completed.stdout


@pytest.mark.parametrize("task", [None, *TASKS])
@pytest.mark.parametrize("language", [None, "en", "de"])
def test_list_is_filtered_by_task_and_language(
    capsys: pytest.CaptureFixture[str], task: str | None, language: str | None
) -> None:
    options = (["--task", task] if task else []) + (["--language", language] if language else [])
    assert main(["list", "--models", *options]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    if not lines:
        assert header.startswith("No model of the list is made for this")
        header = "cost license"
    start, end = header.index("cost"), header.index("license")
    costs = [float(line[start:end].replace(",", "")) for line in lines]
    assert costs == sorted(costs)
    listed = {line.split()[0] for line in lines}
    for model in KNOWN_MODELS:
        wanted = bool(model.tasks) and (task is None or task in model.tasks)
        wanted &= language is None or model.languages in (MULTILINGUAL, language)
        assert (model.hub_id in listed) == wanted, model.hub_id
