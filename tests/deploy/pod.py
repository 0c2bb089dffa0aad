"""A process in a container-like sandbox: namespaces, a read-only root, an arbitrary user, and cgroup limits."""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT, skip_without

USER_ID = 1_000_660_000
"""An id like OpenShift assigns to a namespace: not in /etc/passwd, and in group 0."""
CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
START_TIMEOUT_S = 60
# Paths in the container. A checkout may be in /tmp, and Python in a home directory that other users cannot read.
SOURCE, PACKAGES, MODEL, PYTHON_PREFIX = "/mnt", "/srv", "/media", "/opt"
# Only /tmp and /dev/shm are writable, and both start empty. Tests access them through /proc/PID/root.
MOUNTS = """
set -e
for folder in $7; do echo 0 >"$folder/cgroup.procs"; done
while read -r _ point _; do
  case "$point" in
    /proc | /proc/* | /dev | /dev/* | /sys/fs/cgroup/*) ;;
    *) mount -o remount,bind,ro "$point" || echo "not read-only: $point" ;;
  esac
done </proc/self/mounts
mount --bind "$1" /mnt
mount --bind "$2" /srv
mount --bind "$3" /media
mount --bind "$4" /opt
mount -t proc proc /proc
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777,size=64m tmpfs /dev/shm
mount -t tmpfs tmpfs /sys/fs/cgroup
echo "$5" >/sys/fs/cgroup/cpu.max
echo "$6" >/sys/fs/cgroup/memory.max
mount -o remount,ro /sys/fs/cgroup
shift 7
cd /
exec setpriv --reuid %d --regid 0 --clear-groups --no-new-privs --bounding-set -all --inh-caps -all "$@"
""" % (USER_ID)  # noqa: UP031  # the script has braces


class Cgroup:
    """A cgroup with limits, which apply to the process. The process itself reads a copy in v2 format."""

    def __init__(self, cpus: float | None, memory_bytes: int) -> None:
        quota = "max" if cpus is None else str(int(cpus * PERIOD_US))
        self.cpu_max, self.memory_max = f"{quota} {PERIOD_US}", str(memory_bytes)
        name = f"attendant-test-{os.getpid()}"
        if (CGROUPS / "cgroup.controllers").exists():
            limits = {"cpu.max": self.cpu_max, "memory.max": self.memory_max}
            self._limits = {CGROUPS / name: limits}
        else:
            self._limits = {
                CGROUPS / "cpu" / name: {"cpu.cfs_quota_us": "-1" if cpus is None else quota},
                CGROUPS / "memory" / name: {"memory.limit_in_bytes": self.memory_max},
            }

    def __enter__(self) -> "Cgroup":
        try:
            for folder, limits in self._limits.items():
                folder.mkdir(exist_ok=True)
                for name, value in limits.items():
                    (folder / name).write_text(value)
        except OSError as error:
            self.__exit__()
            pytest.skip(f"cgroups cannot be created here: {error}")
        return self

    def __exit__(self, *error: object) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        for folder in self._limits:
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError:  # a killed process has not exited yet
                    assert time.monotonic() < deadline
                    time.sleep(0.05)

    @property
    def folders(self) -> str:
        """The cgroup's directories, separated by spaces."""
        return " ".join(map(str, self._limits))


class Pod:
    """A server running as PID 1 of its namespace. `pid` is its ID outside."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        self.pid = self._find_server()

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def root(self) -> Path:
        """The container's file system."""
        return Path(f"/proc/{self.pid}/root")

    def wait_for_log(self, text: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while text not in self.log:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def terminate(self, grace_s: float) -> tuple[int, float]:
        """Send SIGTERM, then SIGKILL if the process exceeds the grace period; return exit status and duration."""
        started = time.monotonic()
        os.kill(self.pid, signal.SIGTERM)
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
        return self.process.returncode, time.monotonic() - started

    def kill(self) -> None:
        """Send SIGKILL if the process is still running; otherwise it would outlive unshare."""
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.process.wait()

    def _find_server(self) -> int:
        """Return the server, a child of the unshare process. unshare waits for it and returns its status."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            if pids := children.read_text().split():
                return int(pids[0])
            time.sleep(0.01)
        pytest.fail(self.log)


def require_namespaces() -> None:
    """Skip the test if mount and PID namespaces cannot be created."""
    for tool in ("unshare", "setpriv"):
        if shutil.which(tool) is None:
            skip_without(tool, "install the Debian package util-linux")
    if os.geteuid() != 0:
        pytest.skip("mount namespaces and another user require root")
    command = ["unshare", "--mount", "--pid", "--fork", "mount", "--bind", "/mnt", "/mnt"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"namespaces are not permitted here: {result.stderr.strip()}")


@contextmanager
def start_pod(environment: dict[str, str], model_dir: Path, cgroup: Cgroup, folder: Path) -> Iterator[Pod]:
    """Yield a server in a container with only these environment variables, and kill it at the end of the block."""
    require_namespaces()
    image = {
        "PYTHONPATH": f"{SOURCE}:{PACKAGES}",
        "LD_LIBRARY_PATH": f"{PYTHON_PREFIX}/lib",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    python = f"{PYTHON_PREFIX}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    variables = [f"{name}={value}" for name, value in (image | {"ATTENDANT_MODEL_DIR": MODEL} | environment).items()]
    command = [
        "unshare", "--mount", "--pid", "--fork", "--propagation", "private",
        "sh", "-c", MOUNTS, "sh", str(ROOT), sysconfig.get_path("purelib"), str(model_dir.resolve()), sys.base_prefix,
        cgroup.cpu_max, cgroup.memory_max, cgroup.folders,
        "env", "-i", *variables, python, "-m", "service", "serve",
    ]  # fmt: skip
    log = folder / "pod.log"
    with cgroup, log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        try:
            pod = Pod(process, log)
            try:
                yield pod
            finally:
                pod.kill()
        finally:
            process.kill()
            process.wait()
