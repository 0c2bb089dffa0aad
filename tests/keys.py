"""API keys for tests, in key file format."""

import hashlib
from pathlib import Path

from service.auth import ApiKeys, parse_keys

PATH = Path("keys")


def make_keys(*lines: str) -> ApiKeys:
    """Return the keys of a file with these lines."""
    return ApiKeys(parse_keys(PATH, "".join(f"{line}\n" for line in lines).encode()))


def named_key(name: str, key: str, *terms: int) -> str:
    """Return the key file line of a caller's key, with weight and quota."""
    return ":".join([name, hashlib.sha256(key.encode()).hexdigest(), *map(str, terms)])


def bearer(key: str) -> dict[bytes, bytes]:
    """Return the headers with a key."""
    return {b"authorization": f"Bearer {key}".encode()}
