"""Progress of a file: a bar on a terminal, lines elsewhere."""

import sys
import time
from typing import Any, Self

INTERVAL_S = 10.0


class FileProgress:
    """Shows rows done, rate and time left on stderr. The total is estimated from how much of the file has been read."""

    def __init__(self, command: str, done: int) -> None:
        """Start with `done` rows from an earlier run."""
        self._command, self._first, self._done = command, done, done
        self._start = self._last = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return self
            self._bar = tqdm(initial=self._done, unit="row", unit_scale=True, smoothing=0.05, file=sys.stderr)
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    @property
    def rate(self) -> float:
        """Rows per second in this run."""
        return (self._done - self._first) / max(time.monotonic() - self._start, 1e-3)

    def update(self, rows: int, total: int) -> None:
        """Report `rows` more rows out of an estimated total."""
        self._done += rows
        total = max(total, self._done)
        if self._bar is not None:
            self._bar.total = total
            self._bar.update(rows)
        elif time.monotonic() - self._last >= INTERVAL_S:
            self._last = time.monotonic()
            left = (total - self._done) / max(self.rate, 1e-3)
            print(
                f"{self._command}: {self._done:,} of about {total:,} rows, {self.rate:,.0f} rows/s, {left:,.0f} s left",
                file=sys.stderr,
                flush=True,
            )
