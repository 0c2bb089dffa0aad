"""Every error that a client can get, in one table: canonical code, HTTP status and metric label.

ServiceError
├── MalformedRequest  400  INVALID_ARGUMENT      not JSON, not UTF-8, not protobuf
├── InvalidArgument   422  INVALID_ARGUMENT      readable, but not what the field accepts
│   ├── EmptyInput                               only special tokens
│   ├── InputTooLong                             more tokens than the model accepts
│   └── ResponseTooLarge                         the response would be over the limit
├── RequestTooLarge   413  RESOURCE_EXHAUSTED    too many bytes or characters
├── HeadersTooLarge   431  RESOURCE_EXHAUSTED
├── UnsupportedMedia  415  INVALID_ARGUMENT
├── RequestTimeout    408  DEADLINE_EXCEEDED     the body was not received in time
├── Unauthenticated   401  UNAUTHENTICATED
├── NotFound          404  NOT_FOUND             unknown route or model
├── MethodNotAllowed  405  UNIMPLEMENTED
├── QueueFull         429  RESOURCE_EXHAUSTED    retry after `retry_after_s`
├── Unavailable       503  UNAVAILABLE           starting, draining, device lost
│   └── Overloaded                               too many connections, too much memory for request bodies
├── DeadlineExceeded  504  DEADLINE_EXCEEDED
├── Unsupported       501  UNIMPLEMENTED         this model or version does not support it
├── Cancelled         499  CANCELLED             the client disconnected
└── Internal          500  INTERNAL              the client gets the request ID and nothing else
    └── NonFiniteOutput
"""

from typing import ClassVar

DOMAIN = "attendant"


class ServiceError(Exception):
    """An error for the client.

    `message` names the field, the limit and the remedy, and never echoes input text. `reason` is stable, for programs.
    `label` is that of the rejection counter; "" if the error is not a rejection.
    """

    code: ClassVar[str]
    http_status: ClassVar[int]
    label: ClassVar[str] = ""
    reason: str

    def __init__(self, message: str, *, reason: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.reason
        self.retry_after_s = retry_after_s


class MalformedRequest(ServiceError):
    code, http_status, label, reason = "INVALID_ARGUMENT", 400, "invalid", "unreadable"


class InvalidArgument(ServiceError):
    code, http_status, label, reason = "INVALID_ARGUMENT", 422, "invalid", "invalid"


class EmptyInput(InvalidArgument):
    reason = "empty_input"


class InputTooLong(InvalidArgument):
    reason = "input_too_long"


class ResponseTooLarge(InvalidArgument):
    label, reason = "too_large", "response_too_large"


class RequestTooLarge(ServiceError):
    code, http_status, label, reason = "RESOURCE_EXHAUSTED", 413, "too_large", "too_large"


class HeadersTooLarge(ServiceError):
    code, http_status, label, reason = "RESOURCE_EXHAUSTED", 431, "too_large", "headers_too_large"


class UnsupportedMedia(ServiceError):
    code, http_status, label, reason = "INVALID_ARGUMENT", 415, "invalid", "unsupported_media_type"


class RequestTimeout(ServiceError):
    code, http_status, label, reason = "DEADLINE_EXCEEDED", 408, "deadline", "slow_client"


class Unauthenticated(ServiceError):
    code, http_status, label, reason = "UNAUTHENTICATED", 401, "auth", "unauthenticated"


class NotFound(ServiceError):
    code, http_status, label, reason = "NOT_FOUND", 404, "invalid", "not_found"


class MethodNotAllowed(ServiceError):
    code, http_status, label, reason = "UNIMPLEMENTED", 405, "invalid", "method_not_allowed"


class QueueFull(ServiceError):
    code, http_status, label, reason = "RESOURCE_EXHAUSTED", 429, "queue_full", "queue_full"


class Unavailable(ServiceError):
    code, http_status, label, reason = "UNAVAILABLE", 503, "draining", "unavailable"


class Overloaded(Unavailable):
    label, reason = "overload", "overloaded"


class DeadlineExceeded(ServiceError):
    code, http_status, label, reason = "DEADLINE_EXCEEDED", 504, "deadline", "deadline_exceeded"


class Unsupported(ServiceError):
    code, http_status, label, reason = "UNIMPLEMENTED", 501, "invalid", "not_offered"


class Cancelled(ServiceError):
    code, http_status, reason = "CANCELLED", 499, "cancelled"


class Internal(ServiceError):
    code, http_status, reason = "INTERNAL", 500, "internal"

    def __init__(self, message: str = "Internal error. See the server log for this request ID.") -> None:
        super().__init__(message)


class NonFiniteOutput(Internal):
    reason = "non_finite_output"

    def __init__(self) -> None:
        super().__init__("Model output: not finite for one of the inputs. See the server log for this request ID.")
