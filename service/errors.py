"""Every error that a client can receive: canonical code, HTTP status, reason and metric label."""

from typing import ClassVar

from service.error_reasons import Reason
from service.spelling import ENGINE, Remedy, Spelling

DOMAIN = "attendant"

Detail = int | float | str

MAX_ECHO = 64

_JSON_TYPES: dict[type, str] = {
    bool: "boolean", int: "number", float: "number", str: "string", bytes: "string", list: "array", dict: "object",
}  # fmt: skip


class ServiceError(Exception):
    """An error for the client.

    The message is `<field>: <problem> (<actual>, limit <maximum>). <Remedy>`. It never contains input text.

    Attributes:
        field: The path of the field in the request, such as `inputs[3]`; None if the error is not about one field.
        minimum: The minimum value allowed, if `actual` violates it or a range applies.
        maximum: The maximum value allowed, likewise.
        actual: The rejected number or size, the JSON type if the type is wrong, or the rejected value of a closed set,
            such as a model name.
        reason: A stable machine-readable name, in UPPER_SNAKE_CASE; docs/api.md lists all reasons.
        retry_after_s: Seconds after which a retry may succeed.
        pause_s: Seconds during which the server does not read from the client's connection, so that further requests
            cost nothing.
        label: The label of the rejection counter; "" if the error is not a rejection.
        retryable: Whether the same request may succeed later.
    """

    code: ClassVar[str]
    http_status: ClassVar[int]
    label: ClassVar[str] = ""
    retryable: ClassVar[bool] = False
    reason: Reason
    pause_s: float = 0.0

    def __init__(  # noqa: PLR0913  # the parts of a message
        self,
        problem: str,
        remedy: str | Remedy = "",
        *,
        field: str | None = None,
        actual: Detail | None = None,
        minimum: float | None = None,
        maximum: float | None = None,
        unit: str = "",
        reason: Reason | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        """Set the parts of the message. In `problem` and `remedy`, `{field.value}` stands for an enum value.

        A value that `problem` names is not repeated as `actual` in the message.

        Args:
            problem: What is wrong, without a final period; lower-case after a field, else a capitalized phrase.
            remedy: What to do, one sentence, or a `Remedy`.
            field: See the class attributes.
            actual: See the class attributes.
            minimum: See the class attributes.
            maximum: See the class attributes.
            unit: The unit of the numbers in the message, such as "bytes".
            reason: Replaces the reason of the class.
            retry_after_s: See the class attributes.
        """
        super().__init__(problem)
        self.reason = reason or self.reason
        self.field = field
        self.actual = actual
        self.minimum = minimum
        self.maximum = maximum
        self.retry_after_s = retry_after_s
        self._problem = problem
        self._remedy = remedy
        self._unit = unit
        self._spelling = ENGINE
        before, named, _ = problem.partition(f".{actual}}}")
        self._enumeration = before.rpartition("{")[2] if named else None

    @property
    def message(self) -> str:
        """The message, with the engine's field names, or the API's names after `spell`."""
        spelling, remedy = self._spelling, self._remedy
        quoted = isinstance(self.actual, str) and self.reason != "WRONG_TYPE"
        shown = "" if self.actual is None or self._enumeration else f'"{self.actual}"' if quoted else f"{self.actual}"
        detail = _detail(shown, self.minimum, self.maximum, self._unit)
        message = f"{self.field}: " if self.field else ""
        message += f"{spelling.text(self._problem)}{detail}."
        sentence = spelling.text(remedy) if isinstance(remedy, str) else spelling.remedy(remedy)
        return f"{message} {sentence}" if sentence else message

    def __str__(self) -> str:
        return self.message

    def spell(self, spelling: Spelling) -> None:
        """Use an API's names in `message`, `field` and `actual`. Call it once per engine error."""
        self._spelling = spelling
        if self._enumeration in (spelling.values or ()):
            self.actual = spelling.value(str(self._enumeration), str(self.actual)).strip('"')
        self.field = None if self.field is None else spelling.path(self.field)


def json_type(value: object) -> str:
    """Return the JSON type of a value, for `actual`."""
    return _JSON_TYPES.get(type(value), "null")


def echo(value: str) -> str:
    """Return a rejected value of a closed set for `actual`: one printable line of at most `MAX_ECHO` characters."""
    printable = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in value)
    return printable if len(printable) <= MAX_ECHO else f"{printable[: MAX_ECHO - 3]}..."


def _detail(actual: str, minimum: float | None, maximum: float | None, unit: str) -> str:
    """Return the parenthesized part of a message. It omits a range, which the remedy states."""
    unit = f" {unit}" if unit else ""
    bound = ""
    if minimum is not None and minimum == maximum:
        bound = f"required {minimum}"
    elif minimum is None and maximum is not None:
        bound = f"limit {maximum}"
    elif minimum is not None and maximum is None:
        bound = f"minimum {minimum}"
    if not actual:
        return f" ({bound}{unit})" if bound else ""
    return f" ({actual}{unit}, {bound})" if bound else f" ({actual}{unit})"


class MalformedRequest(ServiceError):  # not JSON, not UTF-8, not protobuf
    code, http_status, label, reason = "INVALID_ARGUMENT", 400, "invalid", "MALFORMED_REQUEST"


class InvalidArgument(ServiceError):
    """A field has an invalid value; the reason comes from a subclass or from the argument `reason`."""

    code, http_status, label = "INVALID_ARGUMENT", 422, "invalid"


class MissingField(InvalidArgument):  # absent, or required by another field
    reason = "MISSING_FIELD"


class UnknownField(InvalidArgument):  # a field that the operation does not define
    reason = "UNKNOWN_FIELD"


class ConflictingFields(InvalidArgument):  # two fields, or two of their values, exclude each other
    reason = "CONFLICTING_FIELDS"


class WrongType(InvalidArgument):  # another JSON type
    reason = "WRONG_TYPE"


class WrongShape(InvalidArgument):  # the length of an array does not match its shape or another array
    reason = "WRONG_SHAPE"


class UnknownValue(InvalidArgument):  # not in a closed set
    reason = "UNKNOWN_VALUE"


class InvalidFormat(InvalidArgument):  # a string that does not parse
    reason = "INVALID_FORMAT"


class InvalidHeader(InvalidArgument):  # a header value that does not parse
    reason = "INVALID_HEADER"


class OutOfRange(InvalidArgument):  # below `minimum` or above `maximum`
    reason = "OUT_OF_RANGE"


class Empty(InvalidArgument):  # no items, or no tokens other than special tokens
    reason = "EMPTY"


class Duplicate(InvalidArgument):  # a repeated item
    reason = "DUPLICATE"


class TooFew(InvalidArgument):  # fewer items than `minimum`
    reason = "TOO_FEW"


class TooMany(InvalidArgument):  # more items than `maximum`
    reason = "TOO_MANY"


class TooLong(InvalidArgument):  # more tokens or characters than `maximum`
    reason = "TOO_LONG"


class UnsupportedByModel(InvalidArgument):  # the model lacks what the value or the operation needs
    reason = "UNSUPPORTED_BY_MODEL"


class ResponseTooLarge(InvalidArgument):  # the response would exceed the limit
    label, reason = "too_large", "RESPONSE_TOO_LARGE"


def missing_or_conflicting(names: tuple[str, str], missing: bool, field: str) -> InvalidArgument:
    """Return the error for two fields of which exactly one must be set."""
    kind, state = (MissingField, "missing") if missing else (ConflictingFields, "set")
    return kind(f"{names[0]} and {names[1]} are both {state}", "Send one of them.", field=field)


class RequestTooLarge(ServiceError):  # too many bytes or characters
    code, http_status, label, reason = "RESOURCE_EXHAUSTED", 413, "too_large", "REQUEST_TOO_LARGE"


class HeadersTooLarge(ServiceError):
    code, http_status, label, reason = "RESOURCE_EXHAUSTED", 431, "too_large", "HEADERS_TOO_LARGE"


class UnsupportedMedia(ServiceError):
    code, http_status, label, reason = "INVALID_ARGUMENT", 415, "invalid", "UNSUPPORTED_MEDIA_TYPE"


class RequestTimeout(ServiceError):  # the body was not received in time
    code, http_status, label, reason = "DEADLINE_EXCEEDED", 408, "deadline", "REQUEST_TIMEOUT"
    retryable = True


class Unauthenticated(ServiceError):
    code, http_status, label, reason = "UNAUTHENTICATED", 401, "auth", "UNAUTHENTICATED"


class HostNotAllowed(ServiceError):  # the header Host names another server
    code, http_status, label, reason = "PERMISSION_DENIED", 403, "auth", "HOST_NOT_ALLOWED"


class AdminKeyRequired(ServiceError):  # the operation requires an admin key
    code, http_status, label, reason = "PERMISSION_DENIED", 403, "auth", "ADMIN_KEY_REQUIRED"


class NotFound(ServiceError):  # unknown route or model
    code, http_status, label, reason = "NOT_FOUND", 404, "invalid", "ROUTE_NOT_FOUND"


class MethodNotAllowed(ServiceError):
    code, http_status, label, reason = "UNIMPLEMENTED", 405, "invalid", "METHOD_NOT_ALLOWED"


class MissingHead(ServiceError):  # the model lacks the head of a method of TEI's API
    code, http_status, label, reason = "FAILED_PRECONDITION", 424, "invalid", "MISSING_HEAD"


class DefaultModelRequired(ServiceError):  # the default model cannot be unloaded
    code, http_status, label, reason = "FAILED_PRECONDITION", 409, "invalid", "DEFAULT_MODEL_REQUIRED"


class LoadFailed(ServiceError):  # a model cannot be loaded; the previous one is still served
    code, http_status, label, reason = "FAILED_PRECONDITION", 409, "invalid", "LOAD_FAILED"


class QueueFull(ServiceError):  # retry after `retry_after_s`
    code, http_status, label = "RESOURCE_EXHAUSTED", 429, "queue_full"
    reason: Reason = "QUEUE_FULL"
    retryable = True


class QuotaExceeded(QueueFull):  # the caller has used its quota
    label, reason = "quota", "QUOTA_EXCEEDED"


class MemoryShareExceeded(QueueFull):  # the caller's bodies or unread responses use too much memory
    label, reason = "overload", "MEMORY_SHARE_EXCEEDED"


class Unavailable(ServiceError):
    code, http_status = "UNAVAILABLE", 503
    reason: Reason = "UNAVAILABLE"
    retryable = True


class Starting(Unavailable):  # the model is loading
    label, reason = "starting", "STARTING"


class Draining(Unavailable):  # the server is shutting down
    label, reason = "draining", "DRAINING"


class BackendFailed(Unavailable):  # the device is lost, or a worker thread has failed
    label, reason = "backend_failed", "BACKEND_FAILED"


class Overloaded(Unavailable):  # too many connections, too much memory for bodies or responses
    label, reason = "overload", "OVERLOADED"


class DeadlineExceeded(ServiceError):
    code, http_status, label, reason = "DEADLINE_EXCEEDED", 504, "deadline", "DEADLINE_EXCEEDED"
    retryable = True


def response_too_late() -> DeadlineExceeded:
    """Return the error for a request whose deadline passed during processing."""
    return DeadlineExceeded(
        "Deadline exceeded before the response was ready",
        "Increase the timeout, at most to max_timeout_ms, or send fewer inputs.",
    )


class Unsupported(ServiceError):  # this version does not support it
    code, http_status, label, reason = "UNIMPLEMENTED", 501, "invalid", "UNSUPPORTED"


class Cancelled(ServiceError):  # the client disconnected
    code, http_status, reason = "CANCELLED", 499, "CANCELLED"

    def __init__(self) -> None:
        super().__init__("Client disconnected")


class Internal(ServiceError):  # the client gets the request ID and nothing else
    code, http_status = "INTERNAL", 500
    reason: Reason = "INTERNAL"
    retryable = True

    def __init__(self, problem: str = "Internal error") -> None:
        super().__init__(problem, "See the server log for this request ID.")


class NonFiniteOutput(Internal):
    reason, retryable = "NON_FINITE_OUTPUT", False

    def __init__(self) -> None:
        super().__init__("Model output is not finite for one of the inputs")
