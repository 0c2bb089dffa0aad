"""API keys and their callers, read from the file that `ATTENDANT_API_KEYS_FILE` names. Changes apply immediately."""

import hashlib
import hmac
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service.callers import ANONYMOUS, ANONYMOUS_NAME, Caller, Quota
from service.config import ConfigError, read_option_file
from service.errors import AdminKeyRequired, ServiceError, Unauthenticated
from service.file_watch import FileWatch
from service.metrics import Metrics

OPTION = "ATTENDANT_API_KEYS_FILE"
ADMIN_OPTION = "ATTENDANT_ADMIN_KEYS_FILE"
SUBJECTS = {OPTION: "api_keys", ADMIN_OPTION: "admin_keys"}
MAX_CALLERS = 256
"""Maximum number of callers, because each caller has separate metric series."""
MAX_WEIGHT = 100
KEY = re.compile(r"[!-~]+")
NAMED = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,63}):(?P<digest>[0-9a-fA-F]{64})"
    r"(?::(?P<weight>[0-9]{1,3}))?(?::(?P<quota>[0-9]{1,12}))?"
)
API_KEY_HEADER = "x-api-key"
"""Alternative header for the key."""
AZURE_KEY_HEADER = "api-key"
"""The header of Azure OpenAI's clients."""
FORMAT = "name:sha256[:weight[:tokens_per_second]]"

log = logging.getLogger("attendant.auth")


@dataclass(frozen=True)
class KeyTable:
    """The contents of a key file: SHA-256 digests and their callers."""

    entries: tuple[tuple[bytes, Caller], ...]

    @property
    def callers(self) -> dict[str, Caller]:
        """The callers by name."""
        return {caller.name: caller for _, caller in self.entries}

    def find(self, key: bytes) -> Caller | None:
        """Return the caller of a key. All keys are compared, in constant time."""
        digest, found = hashlib.sha256(key).digest(), None
        for candidate, caller in self.entries:
            if hmac.compare_digest(candidate, digest):
                found = caller
        return found


class ApiKeys:
    """The accepted keys."""

    def __init__(self, table: KeyTable, path: Path | None = None, content: bytes = b"", option: str = OPTION) -> None:
        self._table = table
        self._path = path
        self._content = content
        self._option = option

    @classmethod
    def load(cls, path: Path | None, option: str = OPTION) -> "ApiKeys | None":
        """Load the keys from the file that an option names; None if there is no file. Raises `ConfigError`."""
        if path is None:
            return None
        content = read_option_file(option, path)
        return cls(parse_keys(path, content, option=option), path, content, option)

    @property
    def callers(self) -> dict[str, Caller]:
        """The callers by name."""
        return self._table.callers

    def find(self, headers: Mapping[bytes, bytes]) -> Caller | None:
        """Return the caller whose key a request carries in `Authorization: Bearer KEY`, `x-api-key` or `api-key`."""
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            other = headers.get(API_KEY_HEADER.encode()) or headers.get(AZURE_KEY_HEADER.encode()) or b""
            key = other if not scheme else b""
        return self._table.find(key)

    def check(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Return the caller of a request. Raises `Unauthenticated` without an accepted key."""
        caller = self.find(headers)
        if caller is None:
            kind = "API" if self._option == OPTION else "admin"
            raise Unauthenticated(
                f"missing or invalid {kind} key", "Send it as Authorization: Bearer KEY.", field="Authorization"
            )
        return caller

    def watch(self, metrics: Metrics) -> FileWatch[bytes]:
        """Return the watch that applies changes of the key file."""
        path = self._path
        assert path is not None
        subject = SUBJECTS[self._option]
        has_metrics = self._option == OPTION  # requests with an admin key are not counted by caller
        if has_metrics:
            metrics.create_callers(self.callers)

        async def apply(content: bytes) -> None:
            before = self.callers
            self._table = table = parse_keys(path, content, before, self._option)
            if has_metrics:
                metrics.remove_callers(before.keys() - table.callers.keys())
                metrics.create_callers(table.callers)
            log.info("%s reloaded keys=%d names=%d", subject, len(table.entries), len(table.callers))

        return FileWatch(subject, metrics, self._content, lambda: read_option_file(self._option, path), apply)


@dataclass(frozen=True)
class Access:
    """The keys that requests need.

    Attributes:
        keys: the keys of callers; None accepts every request.
        admin_keys: keys that allow loading and unloading models and listing callers; None rejects these operations.
    """

    keys: ApiKeys | None = None
    admin_keys: ApiKeys | None = None

    def check_admin(self, headers: Mapping[bytes, bytes], operation: str) -> str:
        """Return the name of the admin who sent a request. Rejections are logged with the operation.

        Raises `AdminKeyRequired` for a caller's key or if there are no admin keys, and `Unauthenticated` for an unknown
        key.
        """
        try:
            return self._find_admin(headers)
        except ServiceError as error:
            log.warning("admin request rejected reason=%s operation=%s", error.reason, operation)
            raise

    def _find_admin(self, headers: Mapping[bytes, bytes]) -> str:
        if self.admin_keys is None:
            if self.keys is not None:
                self.keys.check(headers)
            raise AdminKeyRequired("No admin key is configured", f"Set {ADMIN_OPTION} and restart the server.")
        admin = self.admin_keys.find(headers)
        if admin is None and self.keys is not None and self.keys.find(headers) is not None:
            raise AdminKeyRequired("Not an admin key", f"Send a key of {ADMIN_OPTION}.")
        return self.admin_keys.check(headers).name


PUBLIC = Access()
"""Accepts every request except those that need an admin key."""


def parse_keys(path: Path, content: bytes, previous: Mapping[str, Caller] = {}, option: str = OPTION) -> KeyTable:
    """Return the keys of a file: one key or `FORMAT` per line; blank lines and lines starting with # are skipped.

    In a truncated file, the remainder of a line with a name must not become a key. Such a line contains a colon, or
    lacks a newline in a file with names. Callers in `previous` with the same weight and quota are reused, and others
    keep the tokens in their bucket. Raises `ConfigError`, whose message contains no key.
    """
    try:
        lines = [line.strip() for line in content.decode("utf-8-sig").splitlines()]
        last_complete = len(lines) if content.endswith((b"\n", b"\r")) else len(lines) - 1
    except UnicodeDecodeError:
        raise ConfigError(f"{option}: {path} is not UTF-8. Check the file.") from None
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line and not line.startswith("#")]
    if not numbered:
        raise ConfigError(f"{option}: no key in {path}. Add one per line.")
    callers: dict[str, Caller] = {}
    entries: dict[bytes, Caller] = {}
    has_names = any(NAMED.fullmatch(line) for _, line in numbered)
    unnamed = previous.get(ANONYMOUS_NAME) or Caller(ANONYMOUS_NAME) if has_names else ANONYMOUS
    for number, line in numbered:
        place = f"{option}: line {number} of {path}"
        if (match := NAMED.fullmatch(line)) is not None:
            caller = _read_caller(match, place, previous, option)
            _check_terms(caller, callers.setdefault(caller.name, caller), place)
            caller, digest = callers[caller.name], bytes.fromhex(match["digest"])
        elif ":" in line:
            raise ConfigError(f"{place} has a colon, but is not {FORMAT}. Correct it, or use a key without a colon.")
        elif not KEY.fullmatch(line):
            raise ConfigError(f"{place} is not ASCII without spaces. Use another key.")
        elif number > last_complete and (has_names or previous.keys() - {ANONYMOUS_NAME}):
            raise ConfigError(f"{place} has no newline, so it may be the rest of a line with a name. Add one.")
        else:
            caller, digest = unnamed, hashlib.sha256(line.encode()).digest()
        if entries.setdefault(digest, caller).name != caller.name:
            raise ConfigError(f"{place} repeats a key of another caller. Use another key.")
    if len(callers) > MAX_CALLERS:
        raise ConfigError(f"{option}: too many callers in {path} ({len(callers)}, limit {MAX_CALLERS}). Remove some.")
    return KeyTable(tuple(entries.items()))


def _check_terms(caller: Caller, first: Caller, place: str) -> None:
    """Raise `ConfigError` if a caller's weight or quota differs from the caller's first line."""
    if caller.terms != first.terms:
        terms, others = (
            f"weight {each.weight} and {f'quota {each.quota.tokens_per_second}' if each.quota else 'no quota'}"
            for each in (caller, first)
        )
        raise ConfigError(f"{place}: {caller.name} has {terms}, but {others} in an earlier line. Use the same values.")


def _read_caller(match: re.Match[str], place: str, previous: Mapping[str, Caller], option: str) -> Caller:
    """Return the caller of a line, or the previous caller if unchanged. Raises `ConfigError`."""
    name, weight = match["name"], int(match["weight"] or 1)
    if name == ANONYMOUS_NAME:
        raise ConfigError(f"{place} has the name of keys without a name. Use another name.")
    if option == ADMIN_OPTION and match["weight"] is not None:
        raise ConfigError(f"{place} has a weight, but admin keys have none. Remove it.")
    if not 1 <= weight <= MAX_WEIGHT:
        raise ConfigError(f"{place} has the weight {weight} (limit 1 to {MAX_WEIGHT}). Change it.")
    tokens_per_second = int(match["quota"] or 0)
    if match["quota"] is not None and not tokens_per_second:
        raise ConfigError(f"{place} has a quota of 0 tokens per second. Remove the line, or set a larger quota.")
    before = previous.get(name)
    level = math.inf if before is None or before.quota is None else before.quota.level
    caller = Caller(name, weight, Quota(tokens_per_second, level) if tokens_per_second else None)
    return before if before is not None and before.terms == caller.terms else caller
