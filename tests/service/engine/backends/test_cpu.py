"""How many CPUs a process may use."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.engine.backends.cpu import available_cpus
from service.process import INFERENCE_NICE, lower_thread_priority


def test_available_cpus_follows_affinity() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert available_cpus() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert 1 <= available_cpus() <= len(allowed)


@pytest.mark.parametrize(("quota", "cpus"), [("100000 100000", 1), ("150000 100000", 2), ("10000 100000", 1),
                                             ("6400000 100000", 64), ("max 100000", 64), ("nonsense", 64)])  # fmt: skip
def test_available_cpus_follows_the_quota_of_the_cgroup(
    quota: str, cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert available_cpus(tmp_path / "cpu.max") == cpus


def test_lower_priority_is_inherited_and_leaves_other_threads_alone() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def lower_and_create() -> tuple[int, int]:
        lower_thread_priority()
        with ThreadPoolExecutor(1) as child:
            return niceness(), child.submit(niceness).result()

    before = niceness()
    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(lower_and_create).result() == (INFERENCE_NICE, INFERENCE_NICE)
    assert niceness() == before
