"""Request ids: the caller's own where it is harmless, so that its logs and ours can be joined; else one of ours."""

import re
import secrets

HEADER = "x-request-id"
_HARMLESS = re.compile(r"[A-Za-z0-9._-]{1,128}")


def request_id(sent: str) -> str:
    """The id that a request goes by."""
    return sent if _HARMLESS.fullmatch(sent) else secrets.token_hex(8)
