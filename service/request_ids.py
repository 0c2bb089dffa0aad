"""Request IDs: the client's own if it is harmless, so that the logs of both sides can be joined; else random."""

import re
import secrets

HEADER = "x-request-id"
_HARMLESS = re.compile(r"[A-Za-z0-9._-]{1,128}")


def request_id(value: str) -> str:
    """Return the ID of a request whose header has this value."""
    return value if _HARMLESS.fullmatch(value) else secrets.token_hex(8)
