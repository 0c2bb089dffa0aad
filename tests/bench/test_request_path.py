"""The way of a request through the code: `make path` runs, and the numbers do not grow unnoticed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

LIMITS = {"REST /v1/encode": (35, 400), "gRPC Encode": (33, 370)}
"""Files without metrics, logs and types, and calls. The goal is 14 and 180."""


@pytest.mark.slow
def test_path_of_a_request_does_not_grow(default_artifact: Path) -> None:
    command = [sys.executable, "-m", "tests.bench.request_path"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True).stdout
    found = re.findall(r"^(.+): \d+ files, (\d+) without metrics, logs and types; (\d+) calls", output, re.MULTILINE)
    assert len(found) == 5
    paths = {api: (int(files), int(calls)) for api, files, calls in found}
    for api, (files, calls) in LIMITS.items():
        assert 1 < paths[api][0] <= files
        assert 1 < paths[api][1] <= calls
    assert " service/engine/engine.py" in output
