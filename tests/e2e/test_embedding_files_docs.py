"""The commands in docs/embedding-files.md."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, RunningServer, server_environment

PAGE = (ROOT / "docs" / "embedding-files.md").read_text()


@pytest.mark.slow
def test_commands_write_what_the_page_says(tmp_path: Path, server: RunningServer, default_artifact: Path) -> None:
    """The second command gets the test server's address, and its package is already installed."""
    commands = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    script = "".join(commands).replace(".venv/bin/attendant", f"{sys.executable} -m service")
    script = re.sub(r".*/pip install .*\n", "", script).replace("127.0.0.1:8081", server.grpc)
    environment = server_environment(model_dir=default_artifact, precision="float32")
    paths = os.pathsep.join((str(ROOT), str(ROOT / "client")))
    subprocess.run(
        ["bash", "-ec", script], cwd=tmp_path, env=environment | {"PYTHONPATH": paths}, check=True, timeout=120
    )
    first, second = map(json.loads, (tmp_path / "vectors.jsonl").read_text().splitlines())
    (shown,) = re.findall(r'"embedding":\[([-0-9.]+),([-0-9.]+),\.\.\.\]', PAGE)
    assert (first["row"], first["id"], second["id"]) == (1, 1, 2)
    assert first["embedding"][:2] == pytest.approx([float(value) for value in shown], abs=1e-5)
    vectors = np.load(tmp_path / "by-server.npy")
    assert vectors.shape == (2, 384)
    shortened = vectors[:, :4] / np.linalg.norm(vectors[:, :4], axis=1, keepdims=True)
    np.testing.assert_allclose(shortened, [first["embedding"], second["embedding"]], atol=0.05)
