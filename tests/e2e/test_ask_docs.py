"""The command in docs/ask.md."""

import re
import shlex

import pytest

from tests.conftest import ROOT, run_python

PAGE = (ROOT / "docs" / "ask.md").read_text()


@pytest.mark.slow
def test_command_prints_what_the_page_shows(default_artifact: object) -> None:
    (command,) = re.findall(r"^\.venv/bin/attendant (ask .*)$", PAGE, re.MULTILINE)
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    result = run_python("-m", "service", *shlex.split(command), model_dir=default_artifact)
    assert result.returncode == 0, result.stderr
    printed, expected = ([line.split() for line in text.splitlines()] for text in (result.stdout, shown))
    assert len(printed) == len(expected)
    for got, wanted in zip(printed, expected, strict=True):
        assert [is_number(item) or item for item in got] == [is_number(item) or item for item in wanted]
        for value, other in zip(got, wanted, strict=True):
            if is_number(other):
                # The precision depends on the CPU: cosines vary by up to 0.01, and shares by up to 1 %.
                assert abs(float(value) - float(other)) <= (0.01 if "." in other else 1)


def is_number(item: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", item) is not None
