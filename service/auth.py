"""API keys: who may call when `ATTENDANT_API_KEYS_FILE` is set."""

import hashlib
import hmac
from pathlib import Path

from service.config import ConfigError
from service.errors import Unauthenticated


class ApiKeys:
    """The hashes of the keys that are let in; comparing takes the same time whichever key is sent."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    @classmethod
    def load(cls, path: Path | None) -> "ApiKeys | None":
        """One key a line, blank lines and lines starting with # left out; None when there is no file to read."""
        if path is None:
            return None
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"ATTENDANT_API_KEYS_FILE: {path} cannot be read as text.") from None
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise ConfigError(f"ATTENDANT_API_KEYS_FILE: {path} holds no key.")
        return cls(keys)

    def check(self, authorization: str | bytes | None) -> None:
        """Raise `Unauthenticated` unless the header's value is `Bearer` and a known key."""
        sent = authorization.encode() if isinstance(authorization, str) else authorization or b""
        scheme, _, key = sent.partition(b" ")
        digest = hashlib.sha256(key).digest()
        known = False
        for candidate in self._digests:
            known |= hmac.compare_digest(candidate, digest)
        if scheme.lower() != b"bearer" or not known:
            raise Unauthenticated("Send a valid key as: Authorization: Bearer KEY.")
