"""Names of models and licenses, as users write them, and names of graphs in an artifact."""

import re
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from model.artifact.console import EX_CANTCREAT, EX_DATAERR, EX_UNAVAILABLE, ReportedError

FAST, PADDED = "fast", "padded"
"""The graph that computes hidden states: for packed rows, or, if it was imported, for rows of one text each."""
CUDA, CUDA_SHORT = "cuda", "cuda_short"
"""The graph for GPUs, and for models with windows the one for texts that every window covers; both use its weights."""
CUDA_SPARSE = "cuda_sparse"
"""The graph that projects hidden states onto the vocabulary on a GPU, for a sparse head."""
PADDED_ROWS = "rows"
"""The name of the first axis of `token_offset` (B, S) in a CUDA graph that computes a bias for B S x S scores."""
RESERVED = "none"
"""Metric label for requests that select no model."""
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


_MODEL_ID = re.compile(r"([A-Za-z0-9_.-]+/)?[A-Za-z0-9_.-]{1,96}")
_REVISION = re.compile(r"\w[\w./+-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class SourceError(ReportedError):
    """An unavailable model source. The message names the cause and a remedy."""

    status = EX_DATAERR


class HubUnavailableError(SourceError):
    """A failure of the network or the hub; a retry may succeed."""

    status = EX_UNAVAILABLE


class SpaceError(SourceError):
    """A file system with too little free space. The message states the required and available bytes."""

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
    return _COMMIT.fullmatch(revision) is not None


def parse_hub_id(source: str, revision: str | None = None) -> HubId:
    """Parse a model ID `ORG/NAME` or `ORG/NAME@revision`. `source` is not an existing directory.

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


NOTICES = ("LICENSE*", "NOTICE*", "COPYING*")
"""Names of license and notice files, whose texts must accompany copies of a model."""
_NON_COMMERCIAL = re.compile(r"(^|[^a-z])nc($|[^a-z])|non-?commercial|research", re.IGNORECASE)


def find_notices(directory: Path) -> tuple[Path, ...]:
    """Return the license and notice files of a directory, by name."""
    return tuple(path for path in sorted(directory.iterdir()) if is_notice(path.name) and path.is_file())


def is_notice(name: str) -> bool:
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
    """Return whether a license's name indicates non-commercial or research use only."""
    return license_id is not None and _NON_COMMERCIAL.search(license_id) is not None
