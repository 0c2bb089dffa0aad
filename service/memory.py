"""Memory budget for requests and responses in transit, shared by all APIs."""

import threading

from service.errors import MemoryShareExceeded, Overloaded

RETRY_AFTER_S = 1.0


class MemoryBudget:
    """Bytes in transit by holder. A holder is the named caller of a request, or else its client address.

    A holder may use at most as many bytes as are still free, so that none locks out others: a single holder gets at
    most half of the limit. While nothing is in use, a request or response of any size is accepted.
    """

    def __init__(self, limit: int, noun: str) -> None:
        """`noun`: what the memory is used for, in error messages."""
        self._limit = limit
        self._noun = noun
        self._by_holder: dict[str, int] = {}
        self.lock = threading.Lock()
        self.used = 0

    def acquire(self, holder: str, size: int) -> None:
        """Count bytes. Raises `MemoryShareExceeded` over the holder's share, and `Overloaded` over the limit."""
        with self.lock:
            self.change(holder, 0, size)

    def release(self, holder: str, size: int) -> None:
        """Stop counting bytes."""
        with self.lock:
            self.change(holder, size, 0, exists=True)

    def change(self, holder: str, before: int, after: int, *, exists: bool = False) -> None:
        """Count `after` bytes instead of `before`. The caller holds the lock.

        Raises the errors of `acquire`, unless the bytes already exist.
        """
        own, used = self._by_holder.get(holder, 0) - before, self.used - before
        if used and not exists:
            self._check(own, used, after)
        self.used = used + after
        if own + after:
            self._by_holder[holder] = own + after
        elif before:
            del self._by_holder[holder]

    def _check(self, own: int, used: int, size: int) -> None:
        """Raise an error if a holder of `own` bytes, out of `used` in total, may not acquire `size` more."""
        if used + size > self._limit:
            raise Overloaded(
                f"Too much memory in use for {self._noun}", "Retry later.",
                actual=used + size, maximum=self._limit, unit="bytes", retry_after_s=RETRY_AFTER_S,
            )  # fmt: skip
        if own + size > self._limit - used:
            available = max(0, self._limit - used - own)
            raise MemoryShareExceeded(
                f"Too many pending {self._noun} of this caller ({own} bytes in use, {size} requested, {available} "
                "available)",
                "Finish sending requests and read their responses, then retry.",
                retry_after_s=RETRY_AFTER_S,
            )


class Reservation:
    """Reserved memory of one request body, or of one response from before inference until the client has read it.

    Thread-safe, because a thread may still be preparing a cancelled request.
    """

    __slots__ = ("_budget", "_closed", "holder", "size")

    def __init__(self, budget: MemoryBudget, holder: str = "") -> None:
        self._budget = budget
        self._closed = False
        self.holder = holder
        self.size = 0

    def fork(self) -> "Reservation":
        """Return a reservation for another response of this call."""
        return Reservation(self._budget, self.holder)

    def grow(self, size: int) -> None:
        """Reserve at least `size` bytes. Raises the errors of `MemoryBudget.acquire`, for 0 if the share is used up."""
        with self._budget.lock:
            if not self._closed and size >= self.size:
                self._budget.change(self.holder, self.size, size)
                self.size = size

    def set(self, size: int) -> None:
        """Replace the estimate with the actual response size."""
        with self._budget.lock:
            if not self._closed:
                self._budget.change(self.holder, self.size, size, exists=True)
                self.size = size

    def close(self) -> None:
        """Release the memory."""
        with self._budget.lock:
            self._closed = True
            self._budget.change(self.holder, self.size, 0, exists=True)
            self.size = 0
