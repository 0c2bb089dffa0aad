"""Licenses of models: the file texts that must accompany copies, and a warning about non-commercial ones."""

import re
from fnmatch import fnmatch
from pathlib import Path

NOTICES = ("LICENSE*", "NOTICE*", "COPYING*")
"""Names of license and notice files, whose texts must accompany copies of a model."""
_NON_COMMERCIAL = re.compile(r"(^|[^a-z])nc($|[^a-z])|non-?commercial|research", re.IGNORECASE)


def find_notices(directory: Path) -> tuple[Path, ...]:
    """Return the license and notice files of a directory, by name."""
    return tuple(path for path in sorted(directory.iterdir()) if is_notice(path.name) and path.is_file())


def is_notice(name: str) -> bool:
    """Return whether a name is the name of a license or notice file."""
    return any(fnmatch(name, pattern) for pattern in NOTICES)


def read_license(directory: Path) -> str | None:
    """Return the license in the front matter of the model card; None without one.

    For `license: other`, that is `license_name`, if the card has one.
    """
    card = directory / "README.md"
    if not card.is_file():
        return None
    lines = card.read_text(encoding="utf-8", errors="replace").splitlines()
    if not lines or lines[0].strip() != "---":
        return None
    fields: dict[str, str] = {}
    for line in lines[1:]:
        if line.strip() == "---":
            break
        key, _, value = line.partition(":")
        fields.setdefault(key.rstrip(), value.strip().strip("\"'"))
    license_id = fields.get("license") or None
    return fields.get("license_name") or license_id if license_id == "other" else license_id


def restricts_commercial_use(license_id: str | None) -> bool:
    """Return whether the name of a license says that it is for non-commercial or research use only."""
    return license_id is not None and _NON_COMMERCIAL.search(license_id) is not None
