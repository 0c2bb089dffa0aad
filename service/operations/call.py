"""What accompanies a request: its deadline, how its response is sent, and the duration of its stages."""

import time
from dataclasses import dataclass
from typing import Literal

from service.engine.engine import Engine
from service.engine.lane import Timing
from service.request_log import current_record

Wire = Literal["json", "base64", "binary"]


@dataclass(slots=True)
class Call:
    """One call of an operation.

    Attributes:
        deadline: A time.monotonic() reading; None selects the maximum timeout.
        wire: How arrays of the response are encoded, which decides its size.
        max_inputs: Replaces the limit of inputs for an API with its own limit.
        padded: Whether each input takes the space of the longest one in the response, which then contains only arrays.
        returned_bytes: Size of what the API adapter adds to the response.
        timing: Durations of the stages, once the operation has finished.
    """

    deadline: float | None = None
    wire: Wire = "json"
    max_inputs: int | None = None
    padded: bool = False
    returned_bytes: int = 0
    timing: Timing = Timing(0.0, 0.0, 0.0)  # noqa: RUF009  # immutable

    def start(self, engine: Engine) -> float:
        """Return the deadline of a request that has just arrived, at most the maximum timeout from now."""
        now = time.monotonic()
        latest = now + engine.limits.max_timeout_ms / 1000
        if self.deadline is None:
            return latest
        if (record := current_record()) is not None:
            record.timeout_s = self.deadline - now
        return min(self.deadline, latest)
