"""Every error a caller can get, in one table: its canonical code, HTTP status and metric label.

ServiceError
├── MalformedRequest        400  INVALID_ARGUMENT      not JSON, not UTF-8, not protobuf
├── InvalidArgument           422  INVALID_ARGUMENT      readable, but not what the field takes
│   ├── EmptyInput                               nothing but special tokens
│   ├── InputTooLong                             more tokens than the model takes
│   └── ResponseTooLarge                         the answer would be over the limit
├── RequestTooLarge          413  RESOURCE_EXHAUSTED    too many bytes or characters
├── UnsupportedMedia  415  INVALID_ARGUMENT
├── RequestTimeout        408  DEADLINE_EXCEEDED     the body did not arrive in time
├── Unauthenticated   401  UNAUTHENTICATED
├── NotFound          404  NOT_FOUND             no such route or model
├── MethodNotAllowed  405  UNIMPLEMENTED
├── QueueFull         429  RESOURCE_EXHAUSTED    try again after `retry_after_s`
├── Unavailable       503  UNAVAILABLE           starting, draining, device lost
├── DeadlineExceeded  504  DEADLINE_EXCEEDED
├── Unsupported        501  UNIMPLEMENTED         this model or version does not do that
├── Cancelled         499  CANCELLED             the caller left
└── Internal          500  INTERNAL              ours; the caller gets the request id and nothing else
    └── NonFiniteOutput
"""

from typing import ClassVar

DOMAIN = "attendant"


class ServiceError(Exception):
    """`message` is for people: it names the field and the limit, says what to do, and never echoes the input.

    `reason` is for programs, `label` for the counter of refusals ("" when it is no refusal).
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


class DeadlineExceeded(ServiceError):
    code, http_status, label, reason = "DEADLINE_EXCEEDED", 504, "deadline", "deadline_exceeded"


class Unsupported(ServiceError):
    code, http_status, label, reason = "UNIMPLEMENTED", 501, "invalid", "not_offered"


class Cancelled(ServiceError):
    code, http_status, reason = "CANCELLED", 499, "cancelled"


class Internal(ServiceError):
    code, http_status, reason = "INTERNAL", 500, "internal"

    def __init__(
        self, message: str = "Something went wrong on our side; the log has it under this request id."
    ) -> None:
        super().__init__(message)


class NonFiniteOutput(Internal):
    reason = "non_finite_output"

    def __init__(self) -> None:
        super().__init__("The model gave a number that is not finite for one of the inputs.")
