"""Every error that a client can get: canonical code, HTTP status, reason and metric label.

ServiceError
├── MalformedRequest  400  INVALID_ARGUMENT      not JSON, not UTF-8, not protobuf
├── InvalidArgument   422  INVALID_ARGUMENT      a field has an invalid value
│   ├── EmptyInput                               only special tokens
│   ├── InputTooLong                             more tokens than the model accepts
│   └── ResponseTooLarge                         the response would be over the limit
├── RequestTooLarge   413  RESOURCE_EXHAUSTED    too many bytes or characters
├── HeadersTooLarge   431  RESOURCE_EXHAUSTED
├── UnsupportedMedia  415  INVALID_ARGUMENT
├── RequestTimeout    408  DEADLINE_EXCEEDED     the body was not received in time
├── Unauthenticated   401  UNAUTHENTICATED
├── HostNotAllowed    403  PERMISSION_DENIED     the header Host names another server
├── NotFound          404  NOT_FOUND             unknown route or model
├── MethodNotAllowed  405  UNIMPLEMENTED
├── QueueFull         429  RESOURCE_EXHAUSTED    retry after `retry_after_s`
├── Unavailable       503  UNAVAILABLE
│   ├── Starting                                 the model is loading
│   ├── Draining                                 the server is shutting down
│   ├── BackendFailed                            the device is lost, or a worker thread has failed
│   └── Overloaded                               too many connections, too much memory for request bodies
├── DeadlineExceeded  504  DEADLINE_EXCEEDED
├── Unsupported       501  UNIMPLEMENTED         this model or version does not support it
├── Cancelled         499  CANCELLED             the client disconnected
└── Internal          500  INTERNAL              the client gets the request ID and nothing else
    └── NonFiniteOutput
"""

from typing import ClassVar, Literal

DOMAIN = "attendant"

Reason = Literal[
    "BACKEND_FAILED",
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "DRAINING",
    "DTYPE_OVERFLOW",
    "EMPTY_INPUT",
    "HEADERS_TOO_LARGE",
    "HEAD_OUT_OF_RANGE",
    "HOST_NOT_ALLOWED",
    "INPUT_TOO_LARGE",
    "INPUT_TOO_LONG",
    "INTERNAL",
    "INVALID_ARGUMENT",
    "INVALID_HEADER",
    "LAYER_OUT_OF_RANGE",
    "MALFORMED_REQUEST",
    "METHOD_NOT_ALLOWED",
    "METHOD_NOT_FOUND",
    "MODEL_NOT_FOUND",
    "NON_FINITE_OUTPUT",
    "OCCURRENCE_COUNT",
    "OVERLOADED",
    "PROMPT_NOT_FOUND",
    "QUEUE_FULL",
    "REQUEST_TIMEOUT",
    "REQUEST_TOO_LARGE",
    "RESPONSE_TOO_LARGE",
    "ROUTE_NOT_FOUND",
    "SPANS_OVERLAP",
    "SPAN_EMPTY",
    "SPAN_OUT_OF_RANGE",
    "SPAN_TRUNCATED",
    "STARTING",
    "TOKEN_IDS_DISABLED",
    "TOKEN_ID_OUT_OF_RANGE",
    "TOO_MANY_INPUTS",
    "TOO_MANY_ITEMS",
    "TOO_MANY_PAIRS",
    "TOO_MANY_SPANS",
    "UNAUTHENTICATED",
    "UNAVAILABLE",
    "UNKNOWN_FIELD",
    "UNSUPPORTED",
    "UNSUPPORTED_KIND",
    "UNSUPPORTED_MEDIA_TYPE",
    "UNSUPPORTED_METHOD",
    "UNSUPPORTED_TRANSFER_ENCODING",
    "WORD_OUT_OF_RANGE",
]
"""Every reason; docs/api.md describes each, and a test compares the two."""

Detail = int | float | str

_JSON_TYPES: dict[type, str] = {
    bool: "boolean", int: "number", float: "number", str: "string", bytes: "string", list: "array", dict: "object",
}  # fmt: skip


class ServiceError(Exception):
    """An error for the client.

    The message is `<field>: <problem> (<actual>, limit <limit>). <Remedy>`. It never contains input text.

    Attributes:
        field: The path of the field in the request, such as `inputs[3]`; None if the error is not about one field.
        limit: The limit that was exceeded.
        actual: The value that exceeded it, or the type of a value if the type is wrong.
        reason: A stable machine-readable name, in UPPER_SNAKE_CASE; docs/api.md lists all reasons.
        retry_after_s: Seconds after which a retry may succeed.
        label: The label of the rejection counter; "" if the error is not a rejection.
        retryable: Whether the same request may succeed later.
    """

    code: ClassVar[str]
    http_status: ClassVar[int]
    label: ClassVar[str] = ""
    retryable: ClassVar[bool] = False
    reason: Reason

    def __init__(  # noqa: PLR0913  # the parts of a message
        self,
        problem: str,
        remedy: str = "",
        *,
        field: str | None = None,
        actual: Detail | None = None,
        limit: Detail | None = None,
        unit: str = "",
        reason: Reason | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        """Compose the message.

        Args:
            problem: What is wrong, without a final period; lower-case after a field, else a capitalized phrase.
            remedy: What to do, one sentence.
            field: See the class attributes.
            actual: See the class attributes.
            limit: See the class attributes.
            unit: The unit of `actual` and `limit` in the message, such as "bytes".
            reason: Replaces the reason of the class.
            retry_after_s: See the class attributes.
        """
        detail = _detail(actual, limit, unit)
        self.message = f"{field}: " if field else ""
        self.message += f"{problem}{detail}." + (f" {remedy}" if remedy else "")
        super().__init__(self.message)
        self.field = field
        self.actual = actual
        self.limit = limit
        self.reason = reason or self.reason
        self.retry_after_s = retry_after_s

    def rename_field(self, field: str) -> None:
        """Replace the path of the field, for an API that has another one."""
        self.message = field + self.message.removeprefix(self.field or "")
        self.args = (self.message,)
        self.field = field


def json_type(value: object) -> str:
    """Return the JSON type of a value, for `actual`."""
    return _JSON_TYPES.get(type(value), "null")


def _detail(actual: Detail | None, limit: Detail | None, unit: str) -> str:
    unit = f" {unit}" if unit else ""
    if actual is None:
        return "" if limit is None else f" (limit {limit}{unit})"
    return f" ({actual}{unit})" if limit is None else f" ({actual}{unit}, limit {limit})"


class MalformedRequest(ServiceError):
    code, http_status, label, reason = "INVALID_ARGUMENT", 400, "invalid", "MALFORMED_REQUEST"


class InvalidArgument(ServiceError):
    code, http_status, label = "INVALID_ARGUMENT", 422, "invalid"
    reason: Reason = "INVALID_ARGUMENT"


class EmptyInput(InvalidArgument):
    reason = "EMPTY_INPUT"


class InputTooLong(InvalidArgument):
    reason = "INPUT_TOO_LONG"


class ResponseTooLarge(InvalidArgument):
    label, reason = "too_large", "RESPONSE_TOO_LARGE"


class RequestTooLarge(ServiceError):
    code, http_status, label, reason = "RESOURCE_EXHAUSTED", 413, "too_large", "REQUEST_TOO_LARGE"


class HeadersTooLarge(ServiceError):
    code, http_status, label, reason = "RESOURCE_EXHAUSTED", 431, "too_large", "HEADERS_TOO_LARGE"


class UnsupportedMedia(ServiceError):
    code, http_status, label, reason = "INVALID_ARGUMENT", 415, "invalid", "UNSUPPORTED_MEDIA_TYPE"


class RequestTimeout(ServiceError):
    code, http_status, label, reason = "DEADLINE_EXCEEDED", 408, "deadline", "REQUEST_TIMEOUT"
    retryable = True


class Unauthenticated(ServiceError):
    code, http_status, label, reason = "UNAUTHENTICATED", 401, "auth", "UNAUTHENTICATED"


class HostNotAllowed(ServiceError):
    code, http_status, label, reason = "PERMISSION_DENIED", 403, "auth", "HOST_NOT_ALLOWED"


class NotFound(ServiceError):
    code, http_status, label, reason = "NOT_FOUND", 404, "invalid", "ROUTE_NOT_FOUND"


class MethodNotAllowed(ServiceError):
    code, http_status, label, reason = "UNIMPLEMENTED", 405, "invalid", "METHOD_NOT_ALLOWED"


class QueueFull(ServiceError):
    code, http_status, label, reason = "RESOURCE_EXHAUSTED", 429, "queue_full", "QUEUE_FULL"
    retryable = True


class Unavailable(ServiceError):
    code, http_status = "UNAVAILABLE", 503
    reason: Reason = "UNAVAILABLE"
    retryable = True


class Starting(Unavailable):
    label, reason = "starting", "STARTING"


class Draining(Unavailable):
    label, reason = "draining", "DRAINING"


class BackendFailed(Unavailable):
    label, reason = "backend_failed", "BACKEND_FAILED"


class Overloaded(Unavailable):
    label, reason = "overload", "OVERLOADED"


class DeadlineExceeded(ServiceError):
    code, http_status, label, reason = "DEADLINE_EXCEEDED", 504, "deadline", "DEADLINE_EXCEEDED"
    retryable = True


class Unsupported(ServiceError):
    code, http_status, label, reason = "UNIMPLEMENTED", 501, "invalid", "UNSUPPORTED"


class Cancelled(ServiceError):
    code, http_status, reason = "CANCELLED", 499, "CANCELLED"

    def __init__(self) -> None:
        super().__init__("Client disconnected")


class Internal(ServiceError):
    code, http_status = "INTERNAL", 500
    reason: Reason = "INTERNAL"
    retryable = True

    def __init__(self, problem: str = "Internal error") -> None:
        super().__init__(problem, "See the server log for this request ID.")


class NonFiniteOutput(Internal):
    reason, retryable = "NON_FINITE_OUTPUT", False

    def __init__(self) -> None:
        super().__init__("Model output is not finite for one of the inputs")
