"""The workload OL (C9): W1 offered at shares of the capacity, open loop. Goodput must not fall under far too much."""

import math
import time
from collections.abc import Callable, Sequence

from tests.bench.bars import Verdict, at_least, at_most
from tests.bench.load import Load, bodies_file
from tests.bench.open_loop import Offered, run_open

SHARES = (0.5, 0.8, 1.0, 2.0, 4.0)
GOODPUT_BAR, REFUSAL_BAR_MS = 0.9, 50.0
SETTLE_S = 1.0
FILL_S, MOST_FILL_S = 5.0, 30.0
TOKENS_GUESSED = 20
"""Of a sentence, by the server's own estimate from its characters, which is what a place in the queue costs."""


def measure_overload(
    url: str, texts: Sequence[str], capacity: float, seconds: float, queue_tokens: int, say: Callable[[str], None]
) -> list[Offered]:
    """Each share of `capacity` (requests a second) for so many seconds once the queue has filled, lowest first."""
    found = []
    with bodies_file([{"inputs": text} for text in texts]) as bodies:
        for share in SHARES:
            fill_s = time_to_fill(share, capacity, queue_tokens)
            found.append(run_open(Load(url, 0, bodies), share * capacity, fill_s, seconds))
            say(f"OL {share:<4g} {found[-1].describe()}")
            time.sleep(SETTLE_S)
    return found


def time_to_fill(share: float, capacity: float, queue_tokens: int) -> float:
    """Seconds until what comes faster than it is answered has filled the queue, and the rush that follows is over.

    What comes while it fills waits unread in its sockets, for taking a request in costs more than refusing one; when
    it is full those are refused all at once.
    """
    if share <= 1:
        return FILL_S
    return min(MOST_FILL_S, FILL_S + queue_tokens / TOKENS_GUESSED / ((share - 1) * capacity))


def judge(found: Sequence[Offered]) -> list[Verdict]:
    """The last is the most that was offered."""
    peak = max(one.goodput for one in found)
    most = found[-1]
    share = f"{SHARES[-1]:g} x capacity"
    return [
        at_least("C9", f"goodput at {share}", most.goodput / peak if peak else math.nan, GOODPUT_BAR, "of peak"),
        at_most("C9", f"p99 of refusals at {share}", most.refusal_p99_ms, REFUSAL_BAR_MS, "ms"),
    ]
