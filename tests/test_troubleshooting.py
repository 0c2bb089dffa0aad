"""docs/troubleshooting.md quotes messages, reasons and options exactly."""

import re
from typing import get_args

import pytest

from service.config import Settings
from service.error_reasons import Reason
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
SYMPTOMS = sorted(
    {text for row in re.findall(r"^\| (.*?) \|", PAGE, re.MULTILINE) for text in re.findall("`(.*?)`", row)}
)


@pytest.fixture(scope="module")
def sources() -> str:
    files = [path for folder in ("service", "model") for path in (ROOT / folder).rglob("*.py")]
    return "\n".join(path.read_text() for path in files)


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_symptom_is_a_message_or_a_reason(symptom: str, sources: str) -> None:
    """Compared without addresses, file names and option names, which are filled into messages."""
    fixed = re.sub(r" 127\.0\.0\.1:\d+| manifest\.json$|^ATTENDANT_\.\.\.: ", "", symptom)
    assert fixed in sources or fixed in get_args(Reason)


def test_options_exist() -> None:
    names = {name.lower() for name in re.findall(r"`ATTENDANT_([A-Z_]+)", PAGE)}
    names |= {name.replace("-", "_") for name in re.findall(r"`--([a-z-]+port)`", PAGE)}
    assert len(names) > 8
    assert names <= set(Settings.model_fields)
