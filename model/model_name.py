"""The names of models, in one place: they are sent in HTTP headers, gRPC metadata, metrics, logs and URL paths."""

import re

RESERVED = "none"
"""The model of requests that select none, in metrics."""
MAX_CHARACTERS = 128
NAME_FORMAT = (
    f"must be up to {MAX_CHARACTERS} ASCII letters, digits and . _ : @ + ~ - in parts separated by /, each with a "
    f'letter, a digit or _ first, and not "{RESERVED}"'
)
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.:@+~-]*"
_NAME = re.compile(rf"{_PART}(/{_PART})*")


def is_model_name(name: str) -> bool:
    """Return whether a model can be served under this name."""
    return len(name) <= MAX_CHARACTERS and name != RESERVED and _NAME.fullmatch(name) is not None


def check_model_name(name: str) -> str:
    """Return a valid name. Raises ValueError."""
    if not is_model_name(name):
        raise ValueError(NAME_FORMAT)
    return name
