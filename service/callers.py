"""Callers: the owners of API keys, their shares of the run time, and their quotas."""

import time
from dataclasses import dataclass

from service.errors import QuotaExceeded

ANONYMOUS_NAME = "anonymous"
MAX_PAUSE_S = 1.0
"""Maximum time without reads from a connection whose caller is over its share or quota."""
BURST_S = 10.0
"""A caller that was idle may use the tokens of this many seconds at once."""


class Quota:
    """A token bucket: `tokens_per_second` of inference, in tokens of the model. It holds `BURST_S` seconds at most.

    A request is accepted while the bucket is not empty, whatever its size, and the bucket may then be in debt, so that
    a quota needs no limit for the size of a request. Not thread-safe.
    """

    def __init__(self, tokens_per_second: float) -> None:
        self.tokens_per_second = tokens_per_second
        self._level = tokens_per_second * BURST_S
        self._updated = time.monotonic()
        self.charged = 0.0
        """Tokens charged by this process."""

    @property
    def level(self) -> float:
        """The tokens in the bucket; negative in debt."""
        self._refill()
        return self._level

    @property
    def delay_s(self) -> float:
        """The seconds until a request is accepted; 0 if one is accepted now."""
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
        name: Its name, which logs and metrics contain.
        weight: Its share of the run time, relative to the weights of other callers.
        quota: None for no limit.
    """

    name: str
    weight: int = 1
    quota: Quota | None = None

    @property
    def terms(self) -> tuple[str, int, float | None]:
        """Its name, weight, and quota in tokens per second."""
        return self.name, self.weight, None if self.quota is None else self.quota.tokens_per_second


ANONYMOUS = Caller(ANONYMOUS_NAME)
"""The caller of requests without a key, and of keys without a name."""
