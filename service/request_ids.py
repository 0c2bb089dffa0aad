"""Request IDs and trace contexts: the client's own if they are valid, so that the logs of both sides can be joined."""

import random
import re

HEADER = "x-request-id"
TRACE_HEADER = "traceparent"
_IDS = random.Random()  # noqa: S311  # seeded by the operating system: IDs are unique, but no secrets
_HARMLESS = re.compile(r"[A-Za-z0-9._-]{1,128}")
# W3C Trace Context, section 3.2: version, trace ID, parent ID and flags; later versions may append fields.
_TRACEPARENT = re.compile(
    r"(?!ff)(?!00-.{52}-)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[A-Za-z0-9._-]{1,64})?"
)


def request_id(value: str) -> str:
    """Return the ID of a request whose header has this value, a random one if the header has no harmless value."""
    return value if _HARMLESS.fullmatch(value) else f"{_IDS.getrandbits(64):016x}"


def traceparent(value: str) -> str:
    """Return a valid trace context unchanged, and "" for any other value, which W3C Trace Context says to ignore."""
    return value if _TRACEPARENT.fullmatch(value) else ""
