"""The list of well-known models: each config is read without an error and gives the published number of parameters."""

import subprocess
import sys

import pytest

from model.families import FAMILIES, find_family
from model.source.known_models import KNOWN_MODELS, OTHER_ARCHITECTURES, KnownModel, list_models
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
