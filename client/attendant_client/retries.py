"""Retry policy: retry after the delay that the server suggests, within the request's deadline."""

import random
import time
from dataclasses import dataclass

from attendant_client.errors import AttendantError

MULTIPLIER = 4
UNLIMITED_S = 1e9
"""Timeout from which a call has no deadline. gRPC fails at once with timeouts over 290 years, and sockets do, too."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries of transient errors: a full queue, or an overloaded, starting or unreachable server.

    The delay is the server's hint, or else `initial_delay_s` times 4 per attempt up to `max_delay_s`, plus up to 25%
    random jitter, so that clients do not retry in lockstep. With the defaults, the first retry goes to another server
    immediately, and the attempts span 2 s, enough for a stopping server to finish its requests and close its
    connections.
    """

    max_attempts: int = 4
    initial_delay_s: float = 0.1
    max_delay_s: float = 5.0

    def delay_s(self, error: AttendantError, attempt: int, deadline: float | None) -> float | None:
        """Return the seconds to wait before the next attempt, or None if the error is final.

        Args:
            error: Error of the last attempt.
            attempt: Number of that attempt, from 1.
            deadline: A time.monotonic() reading, or None for no deadline.
        """
        if not error.retryable or attempt >= self.max_attempts:
            return None
        delay = error.retry_after_s
        if delay is None:
            delay = min(self.initial_delay_s * MULTIPLIER ** (attempt - 1), self.max_delay_s)
        delay *= 1 + random.random() / 4  # noqa: S311  # jitter
        if deadline is not None and time.monotonic() + delay >= deadline:
            return None
        return delay


def deadline_after(timeout_s: float | None) -> float | None:
    """Return the time.monotonic() reading after a timeout in seconds; None without a deadline."""
    return None if timeout_s is None or timeout_s >= UNLIMITED_S else time.monotonic() + timeout_s


NO_RETRIES = RetryPolicy(max_attempts=1)
