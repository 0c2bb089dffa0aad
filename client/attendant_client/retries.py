"""Retry policy: retry after the delay that the server suggests, within the deadline of the request."""

import random
import time
from dataclasses import dataclass

from attendant_client.errors import AttendantError

MULTIPLIER = 4


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries of transient errors: a full queue, an overloaded, starting or unreachable server.

    The delay is the server's hint, or `initial_delay_s` multiplied by 4 per attempt up to `max_delay_s`, plus up to
    25 % of random jitter, so that many clients do not retry at the same time. The defaults retry at once on another
    server, and bridge 2 s, in which a stopping server finishes its requests and closes its connections.
    """

    max_attempts: int = 4
    initial_delay_s: float = 0.1
    max_delay_s: float = 5.0

    def delay_s(self, error: AttendantError, attempt: int, deadline: float | None) -> float | None:
        """Return seconds to wait before the next attempt; None if the error is final.

        Args:
            error: The error of the last attempt.
            attempt: The number of that attempt, from 1.
            deadline: A time.monotonic() reading; None for no deadline.
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


NO_RETRIES = RetryPolicy(max_attempts=1)
