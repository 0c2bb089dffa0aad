"""Names of model sources on the command line: "default", directories, and Hugging Face model IDs with a revision."""

import re
from dataclasses import dataclass
from pathlib import Path

from model.console import EX_CANTCREAT, EX_DATAERR, EX_UNAVAILABLE

_MODEL_ID = re.compile(r"([A-Za-z0-9_.-]+/)?[A-Za-z0-9_.-]{1,96}")
_REVISION = re.compile(r"\w[\w./+-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class SourceError(Exception):
    """An unavailable model source. The message names the cause and a remedy."""

    status = EX_DATAERR


class HubUnavailableError(SourceError):
    """A failure of the network or of the hub, after which a retry may succeed."""

    status = EX_UNAVAILABLE


class SpaceError(SourceError):
    """A file system with too little free space. The message has the required and the available bytes."""

    status = EX_CANTCREAT


@dataclass(frozen=True)
class HubId:
    """A Hugging Face model ID, and the branch, tag or commit as typed; None selects the default branch."""

    model_id: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.model_id if self.revision is None else f"{self.model_id}@{self.revision}"

    @property
    def commit(self) -> str | None:
        """The revision if it is a full commit, which never changes."""
        return self.revision if self.revision is not None and is_commit(self.revision) else None


def is_commit(revision: str) -> bool:
    """Return whether a revision is a full commit."""
    return _COMMIT.fullmatch(revision) is not None


def parse_hub_id(source: str, revision: str | None = None) -> HubId:
    """Return the model ID and the revision of `ORG/NAME` or `ORG/NAME@revision`, which is not an existing directory.

    `revision` is the value of the option `--revision`. Setting both is an error.

    Raises:
        SourceError: `source` is a path, or not a valid ID.
    """
    model_id, separator, suffix = source.partition("@")
    if Path(source).is_absolute() or source.startswith((".", "~")) or model_id.count("/") > 1:
        raise SourceError(f"{source}: no such directory. Check the path.")
    if Path(source).exists():
        raise SourceError(f"{source}: not a directory. Name the directory of the model or of its artifact.")
    if not _is_model_id(model_id):
        raise SourceError(f"{source}: neither a directory nor a Hugging Face model ID. Use owner/name.")
    if separator and revision is not None:
        raise SourceError(f"{source}: revision set twice (@{suffix} and --revision {revision}). Remove one.")
    chosen = suffix if separator else revision
    if chosen is not None and (not _REVISION.fullmatch(chosen) or ".." in chosen):
        raise SourceError(f"{source}: invalid revision ({chosen!r}). Use a branch, a tag or a commit.")
    return HubId(model_id, chosen)


def _is_model_id(text: str) -> bool:
    """Return whether huggingface_hub accepts the ID."""
    names = text.split("/")
    return (
        _MODEL_ID.fullmatch(text) is not None
        and not any(name[0] in "-." or name[-1] in "-." for name in names)
        and not any(part in text for part in ("--", ".."))
        and not text.endswith(".git")
    )
