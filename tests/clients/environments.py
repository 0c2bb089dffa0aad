"""Virtual environments for third-party packages, whose dependencies may conflict with this project's."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.registry import REQUIREMENTS, find_client

PROLOGUE = """
import json, sys
arguments = json.load(sys.stdin)
rest, grpc_address, texts = arguments["rest"], arguments["grpc"], arguments["texts"]
def send(results):
    print(json.dumps(results, default=lambda array: array.tolist()))
"""
INSTALL_TIMEOUT_S = 300
RUN_TIMEOUT_S = 120
MISSING = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is not None)"


@dataclass(frozen=True)
class ClientEnvironment:
    """An environment with one client."""

    python: Path

    @classmethod
    def create(cls, name: str, directory: Path, *, share_torch: bool = False) -> "ClientEnvironment":
        """Install `requirements/<name>.txt`; skip the test if that fails, for example without access to an index.

        With `share_torch`, torch is not installed: it and other missing packages come from this interpreter, because
        PyPI's torch requires the CUDA libraries.
        """
        uv, python = Path(sys.executable).with_name("uv"), directory / "bin" / "python"
        install = [uv, "pip", "install", "--python", python, "--requirement", REQUIREMENTS / f"{name}.txt"]
        if share_torch:
            excludes = directory.with_name(f"{name}-excludes.txt")
            excludes.write_text("torch\n")
            install += ["--excludes", excludes]
        commands = ([uv, "venv", "--python", sys.executable, directory], install)
        for command in commands:
            try:
                result = subprocess.run(
                    [*map(str, command)], capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                pytest.skip(f"{name} cannot be installed: {error}")
            if result.returncode:
                pytest.skip(f"{name} cannot be installed: {result.stderr.strip()[-500:]}")
        environment = cls(python)
        assert environment._run(MISSING, {}).returncode == 0, f"{name} installs torch"
        if share_torch:
            (packages,) = directory.glob("lib/python*/site-packages")
            (packages / "shared.pth").write_text(f"{sysconfig.get_path('platlib')}\n")
        return environment

    def call(self, code: str, rest: str = "", grpc: str = "", texts: Sequence[str] = (), **arguments: Any) -> Any:
        """Run Python code after `PROLOGUE`; return what it sends."""
        result = self._run(PROLOGUE + code, {"rest": rest, "grpc": grpc, "texts": texts} | arguments)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1])

    def _run(self, code: str, arguments: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HF_"))}
        # Otherwise the clients send usage reports to other servers.
        quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "HAYSTACK_TELEMETRY_ENABLED": "False"}
        return subprocess.run(
            [str(self.python), "-c", code], env=kept | quiet, input=json.dumps(arguments),
            capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False,
        )  # fmt: skip


def run_client(package: str, code: str, directory: Path, rest: httpx.Client, **arguments: Any) -> Any:
    """Run a client's snippet followed by further code, which sends results. See `PROLOGUE` for the arguments."""
    client = find_client(package)
    environment = ClientEnvironment.create(client.environment, directory / client.environment)
    return environment.call(client.snippet + code, rest=str(rest.base_url).rstrip("/"), **arguments)
