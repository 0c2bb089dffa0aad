"""A request's path through the code does not grow unnoticed."""

import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

LIMITS = {
    "REST /v1/encode": (24, 290),
    "REST /v1/rerank": (26, 480),
    "REST /v1/attend": (30, 880),
    "gRPC Encode": (24, 300),
    "REST /v1/encode, 32 texts, base64": (24, 780),
    "gRPC Encode, 32 texts": (24, 780),
}
"""Files without metrics, logs and types, and calls, whose number depends on how many batches run."""


def test_path_of_a_request_does_not_grow(default_artifact: Path) -> None:
    command = [sys.executable, "-m", "bench.request_path"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 0, process.stderr  # after 240 s, what each thread does
    output = process.stdout
    lines = re.findall(r"^(.+): \d+ files, (\d+) without metrics, logs and types; (\d+) calls", output, re.MULTILINE)
    paths = {api: (int(files), int(calls)) for api, files, calls in lines}
    assert len(paths) == 9
    for api, (files, calls) in LIMITS.items():
        assert 1 < paths[api][0] <= files
        assert 1 < paths[api][1] <= calls
    assert " service/engine/engine.py" in output
