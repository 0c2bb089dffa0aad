"""A container's probes, run as the kubelet runs them."""

import threading
import time
from typing import Any, Self

import httpx

SPEEDUP = 50
"""How many times more often probes run than in the manifest. Timeouts are unchanged."""


class Probe:
    """Runs in a thread until `stop` or the end of a `with` block."""

    def __init__(self, definition: dict[str, Any], admin: str) -> None:
        self.statuses: list[int] = []
        """HTTP status of each probe, or 0 if there was no response."""
        self._url = admin + definition["httpGet"]["path"]
        self._period_s = definition["periodSeconds"] / SPEEDUP
        self._timeout_s = definition["timeoutSeconds"]
        self._max_failures = definition["failureThreshold"] * SPEEDUP
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for_success(self) -> None:
        """Wait for a success, no longer than the kubelet would."""
        while 200 not in self.statuses:
            assert len(self.statuses) < self._max_failures, "the container does not start in time"
            time.sleep(self._period_s)

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            try:
                self.statuses.append(httpx.get(self._url, timeout=self._timeout_s).status_code)
            except httpx.TransportError:
                self.statuses.append(0)
