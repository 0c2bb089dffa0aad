"""Errors returned by the server, or raised if it cannot be reached."""

import copyreg
import re
from typing import Any

RETRYABLE = frozenset(
    (
        "QUEUE_FULL",
        "QUOTA_EXCEEDED",
        "MEMORY_SHARE_EXCEEDED",
        "OVERLOADED",
        "STARTING",
        "DRAINING",
        "BACKEND_FAILED",
        "MODEL_CHANGED",
        "UNAVAILABLE",
    )
)
"""Transient reasons: the same request may succeed on a retry."""


class AttendantError(Exception):
    """A request failed.

    Attributes:
        code: Canonical gRPC code, such as INVALID_ARGUMENT; UNAVAILABLE if the server cannot be reached.
        reason: Stable name of the error, such as TOO_LONG; docs/api.md lists all.
        message: Human-readable message.
        field: Path of the field, such as `inputs[3]`; None if the error is not about one field.
        minimum: The minimum value allowed, if any.
        maximum: The maximum value allowed, if any.
        actual: The rejected value or size, if any; the type of a value if the type is wrong.
        request_id: ID of the request in the server log.
        retry_after_s: Seconds after which the server suggests a retry.
    """

    def __init__(  # noqa: PLR0913  # the fields of an error
        self,
        code: str,
        reason: str,
        message: str,
        *,
        field: str | None = None,
        minimum: int | float | None = None,
        maximum: int | float | None = None,
        actual: int | float | str | None = None,
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"{reason}: {message}" if reason else message)
        self.code = code
        self.reason = reason
        self.message = message
        self.field = field
        self.minimum = minimum
        self.maximum = maximum
        self.actual = actual
        self.request_id = request_id
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to copy the error, also to another process: by its attributes, not by calling the class."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]

    @property
    def retryable(self) -> bool:
        """True if the same request may succeed later."""
        return self.reason in RETRYABLE

    def count_from(self, first: int) -> None:
        """Change the error's field to refer to the whole request. `first` is the index of the part's first input."""
        old = self.field or ""
        new = re.sub(r"^inputs\[(\d+)\]", lambda match: f"inputs[{int(match[1]) + first}]", old)
        if new != old:
            self.field = new
            self.message = self.message.replace(old, new, 1)
            self.args = (self.args[0].replace(old, new, 1),)


def invalid(  # noqa: PLR0913  # the parts of an error
    reason: str,
    field: str,
    problem: str,
    remedy: str,
    *,
    actual: int | str | None = None,
    minimum: int | None = None,
    maximum: int | None = None,
) -> AttendantError:
    """Return the error for a value that the client rejects, with the server's reason and message format."""
    quoted = isinstance(actual, str) and reason != "WRONG_TYPE"
    detail = "" if actual is None else f' ("{actual}")' if quoted else f" ({actual})"
    message = f"{field}: {problem}{detail}. {remedy}"
    return AttendantError(
        "INVALID_ARGUMENT", reason, message, field=field, minimum=minimum, maximum=maximum, actual=actual
    )


def wrong_type(field: str, value: Any, remedy: str) -> AttendantError:
    """Return the error for a value of the wrong type."""
    return invalid("WRONG_TYPE", field, "wrong type", remedy, actual=type(value).__name__)
