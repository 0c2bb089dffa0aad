"""API keys, checked if `ATTENDANT_API_KEYS_FILE` is set."""

import hashlib
import hmac
import re
from pathlib import Path

from service.config import ConfigError
from service.errors import Unauthenticated

OPTION = "ATTENDANT_API_KEYS_FILE"
KEY = re.compile(r"[!-~]+")


class ApiKeys:
    """Hashes of the accepted keys, compared in constant time."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    @classmethod
    def load(cls, path: Path | None) -> "ApiKeys | None":
        """Return the keys of a file, one per line; blank lines and lines starting with # are skipped.

        Raises `ConfigError` for a key that clients cannot send in a header.
        """
        if path is None:
            return None
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        except OSError as error:
            raise ConfigError(f"{OPTION}: cannot read {path} ({error.strerror}). Check the path.") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{OPTION}: {path} is not UTF-8. Check the file.") from None
        keys = [line for line in lines if line and not line.startswith("#")]
        for number, line in enumerate(lines, start=1):
            if line in keys and not KEY.fullmatch(line):
                raise ConfigError(f"{OPTION}: line {number} of {path} is not ASCII without spaces. Use another key.")
        if not keys:
            raise ConfigError(f"{OPTION}: no key in {path}. Add one per line.")
        return cls(keys)

    def check(self, authorization: str | bytes | None) -> None:
        """Raise `Unauthenticated` unless the header is `Bearer KEY` with an accepted key."""
        value = authorization.encode() if isinstance(authorization, str) else authorization or b""
        scheme, _, key = value.partition(b" ")
        digest = hashlib.sha256(key).digest()
        known = False
        for candidate in self._digests:
            known |= hmac.compare_digest(candidate, digest)
        if scheme.lower() != b"bearer" or not known:
            raise Unauthenticated(
                "missing or invalid API key", "Send the header Authorization: Bearer KEY.", field="Authorization"
            )
