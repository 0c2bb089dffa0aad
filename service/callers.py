"""Callers: the owners of API keys, their shares of the run time, and their quotas."""

import math
import time
from dataclasses import dataclass

from service.errors import QuotaExceeded

ANONYMOUS_NAME = "anonymous"
MAX_PAUSE_S = 1.0
"""Maximum time, in seconds, to stop reading from the connection of a caller over its share or quota."""
BURST_S = 10.0
"""An idle caller may burst: it can use this many seconds' worth of tokens immediately."""


class Quota:
    """A bucket of model tokens, refilled at `tokens_per_second`. Its capacity is `BURST_S` seconds' worth of tokens.

    A request of any size is accepted while the bucket is not empty, and may leave the bucket in debt, so a quota does
    not limit the size of a request. Not thread-safe.
    """

    def __init__(self, tokens_per_second: float, level: float = math.inf) -> None:
        """`level`: the tokens in the bucket, at most its capacity."""
        self.tokens_per_second = tokens_per_second
        self._level = min(level, tokens_per_second * BURST_S)
        self._updated = time.monotonic()
        self.charged = 0.0
        """Tokens charged by this process."""

    @property
    def level(self) -> float:
        """The number of tokens in the bucket; negative if in debt."""
        self._refill()
        return self._level

    @property
    def delay_s(self) -> float:
        """Seconds until the next request is accepted; 0 if it would be accepted now."""
        return max(0.0, -self.level / self.tokens_per_second)

    def check(self) -> None:
        """Raise `QuotaExceeded` while the bucket is in debt."""
        delay = self.delay_s
        if delay > 0:
            error = QuotaExceeded(
                f"Quota exceeded ({self.tokens_per_second:g} tokens per second)", "Retry later.", retry_after_s=delay
            )
            error.pause_s = min(delay, MAX_PAUSE_S)
            raise error

    def charge(self, tokens: int) -> None:
        """Remove tokens; a negative number returns them."""
        self.charge_elsewhere(tokens)
        self.charged += tokens

    def charge_elsewhere(self, tokens: float) -> None:
        """Remove tokens that another worker has charged."""
        self._refill()
        self._level -= tokens

    def _refill(self) -> None:
        now = time.monotonic()
        full = self.tokens_per_second * BURST_S
        self._level = min(full, self._level + (now - self._updated) * self.tokens_per_second)
        self._updated = now


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """The owner of API keys.

    Attributes:
        name: The name used in logs and metrics.
        weight: The caller's share of the run time, relative to the weights of other callers.
        quota: None for no limit.
    """

    name: str
    weight: int = 1
    quota: Quota | None = None

    @property
    def terms(self) -> tuple[str, int, float | None]:
        """Name, weight, and quota in tokens per second."""
        return self.name, self.weight, None if self.quota is None else self.quota.tokens_per_second


ANONYMOUS = Caller(ANONYMOUS_NAME)
"""The caller of requests without a key, and of keys without a name."""
