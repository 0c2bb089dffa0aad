"""A Docker daemon without a registry, and images built by it on a base made from Debian packages.

The daemon has no bridge network. Builds need none, because all wheels are in deploy/wheelhouse, and containers share
the host network.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import ROOT

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "attendant-image"
WHEELHOUSE = ROOT / "deploy" / "wheelhouse"
LOCKS = ROOT / "deploy" / "locks"
BASE = "attendant-base:bookworm"
BASE_PACKAGES = "python3,python3-venv,ca-certificates"
START_TIMEOUT_S = 60
DOCKER = next((path for path in ("/usr/bin/docker", shutil.which("docker") or "") if Path(path).exists()), "docker")
"""Debian's client has BuildKit built in; others need a plug-in for it."""


class Daemon:
    """A separate dockerd that stores its data in `CACHE`."""

    def __init__(self) -> None:
        self._directory = CACHE / "daemon"
        self._directory.mkdir(parents=True, exist_ok=True)
        self._socket = f"unix://{self._directory}/docker.sock"

    def start(self) -> None:
        """Start the daemon; raises RuntimeError with the end of its log if it does not come up."""
        folder = self._directory
        (folder / "docker.pid").unlink(missing_ok=True)
        self._log = (folder / "dockerd.log").open("w")
        self._process = subprocess.Popen(
            ["dockerd", "--bridge=none", "--iptables=false", "--ip6tables=false", f"--host={self._socket}",
             f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/docker.pid"],
            stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.run("version", check=False).returncode != 0:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError((folder / "dockerd.log").read_text()[-1000:])
            time.sleep(0.2)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        self._log.close()

    def run(self, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a docker command."""
        environment = os.environ | {"DOCKER_HOST": self._socket, "DOCKER_BUILDKIT": "1"}
        command = [DOCKER, *map(str, arguments)]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
        if check and result.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
        return result

    def build(self, tag: str, target: str, **arguments: str) -> None:
        options = {"BASE": BASE, "PIP_NO_INDEX": "1", "REVISION": revision()} | arguments
        flags = [flag for name, value in options.items() for flag in ("--build-arg", f"{name}={value}")]
        self.run("build", "--network=host", "--progress=plain", f"--target={target}", f"--tag={tag}", *flags, ".")

    def import_base(self) -> None:
        """Import the base image unless the daemon already has it."""
        if self.run("image", "inspect", BASE, check=False).returncode == 0:
            return
        folder = CACHE / "base"
        shutil.rmtree(folder, ignore_errors=True)
        command = ["debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", "bookworm", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for unused in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man",
                       "usr/share/locale", "var/log"):  # fmt: skip
            shutil.rmtree(folder / unused, ignore_errors=True)
        archive = CACHE / "base.tar"
        subprocess.run(["tar", "-C", str(folder), "-cf", str(archive), "."], check=True)
        self.run("import", archive, BASE)
        shutil.rmtree(folder)
        archive.unlink()


def download_wheels(*locks: str) -> None:
    """Download the wheels in these lock files to deploy/wheelhouse; pip checks their hashes."""
    for lock in locks:
        file = LOCKS / f"{lock}.txt"
        marker = WHEELHOUSE / f".{lock}-{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"
        if marker.exists():
            continue
        options = ["--quiet", "--disable-pip-version-check", "--require-hashes", "--only-binary=:all:"]
        command = [sys.executable, "-m", "pip", "download", *options, "-d", str(WHEELHOUSE), "-r", str(file)]
        subprocess.run(command, check=True)
        marker.touch()


def revision() -> str:
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
