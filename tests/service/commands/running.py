"""Runs a command in this process."""

import pytest

from service.__main__ import main


def run_command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Return status, stdout and stderr."""
    try:
        status = main([*map(str, arguments)])
    except SystemExit as usage:
        status = int(str(usage.code))
    return status, *capsys.readouterr()
