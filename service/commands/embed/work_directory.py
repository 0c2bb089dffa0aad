"""The work directory of an embedding file, used to resume a run after it was killed."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import orjson

from model.artifact.console import EX_CANTCREAT, EX_CONFIG
from service.commands.arguments import CommandError

VERSION = 1
DATA, REJECTED, STATE, LOCK = "data", "rejected.jsonl", "state.json", "lock"
OWN_FILES = frozenset((DATA, REJECTED, STATE, LOCK, "state.json.new", "output.parquet"))

RunKey = Mapping[str, str | int | bool | None]
"""Properties of the input file, the model and the options that must be unchanged to resume a run."""


@dataclass(frozen=True)
class Counts:
    """Numbers of input rows on disk."""

    rows: int = 0
    rejected: int = 0
    truncated: int = 0


@dataclass(frozen=True)
class _State:
    run: dict[str, Any]
    counts: Counts = field(default_factory=Counts)
    data_bytes: int = 0
    rejected_bytes: int = 0
    output: str | None = None
    """Name of the complete output file, once it is ready to be published; "" if there is none."""


class WorkDirectory:
    """The directory OUT.partial.

    Files are append-only, and a state file records their sizes. It is replaced once the data is on disk. If the process
    is killed, the next run truncates the files to these sizes and continues with the following row.
    """

    def __init__(self, target: Path, state: _State) -> None:
        self._target, self._state = target, state
        self.path = partial_path(target)

    @classmethod
    @contextmanager
    def open(cls, target: Path, run: RunKey, header: bytes, *, overwrite: bool) -> Iterator[Self]:
        """Create the work directory of an output file, or resume it, and lock it.

        Args:
            target: The output file.
            run: See `RunKey`.
            header: Start of the data.
            overwrite: Whether the output file may exist.

        Raises:
            CommandError: The directory cannot be written, is in use, or belongs to another run.
        """
        path = partial_path(target)
        if not overwrite and not path.exists():
            check_absent(target)
        with _write_errors(path):
            path.mkdir(exist_ok=True)
            foreign = sorted({item.name for item in path.iterdir()} - OWN_FILES)
            if foreign:
                raise CommandError(f"{path}: contains other files. Move the directory.", EX_CANTCREAT)
            lock = (path / LOCK).open("wb")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise CommandError(f"{path}: in use by another process. Wait for its end.", EX_CANTCREAT) from None
            with _write_errors(path):
                work = cls._open(target, dict(run), header, overwrite=overwrite)
            yield work

    @classmethod
    def _open(cls, target: Path, run: dict[str, Any], header: bytes, *, overwrite: bool) -> Self:
        path = partial_path(target)
        state = _read_state(path)
        if state is not None:
            _check_same_run(path, state.run, run)
        # A run killed while publishing its output may already have moved some of it.
        if not overwrite and (state is None or state.output is None):
            check_absent(target)
        if state is None:
            (path / REJECTED).write_bytes(b"")
            _append(path / DATA, 0, header)
            state = _State(run, data_bytes=len(header))
            _write_state(path, state)
        return cls(target, state)

    @property
    def counts(self) -> Counts:
        return self._state.counts

    @property
    def is_complete(self) -> bool:
        """True if all rows are on disk and only renames can be missing."""
        return self._state.output is not None

    def append(self, data: bytes, rejected: bytes, counts: Counts) -> None:
        """Write a chunk to disk; `counts` already include it. Raises `CommandError`."""
        state = self._state
        with _write_errors(self.path):
            if rejected:
                _append(self.path / REJECTED, state.rejected_bytes, rejected)
            _append(self.path / DATA, state.data_bytes, data)
            self._state = replace(
                state,
                counts=counts,
                data_bytes=state.data_bytes + len(data),
                rejected_bytes=state.rejected_bytes + len(rejected),
            )
            _write_state(self.path, self._state)

    def publish(self, finish: Callable[[Path, int], Path] | None) -> None:
        """Move the rejected rows into place, then the output, if any. Raises `CommandError`.

        `finish` completes the output from the data and the number of rows. It is None if all rows are rejected.
        """
        with _write_errors(self.path):
            if self._state.output is None:
                for name, size in ((DATA, self._state.data_bytes), (REJECTED, self._state.rejected_bytes)):
                    os.truncate(self.path / name, size)
                output = finish(self.path / DATA, self._state.counts.rows).name if finish is not None else ""
                self._state = replace(self._state, output=output)
                _write_state(self.path, self._state)
            # If an earlier run was killed, any step may already be done.
            rejected, output_path = self.path / REJECTED, self.path / str(self._state.output)
            if not self._state.counts.rejected:
                rejected_path(self._target).unlink(missing_ok=True)
            elif rejected.exists():
                rejected.replace(rejected_path(self._target))
            if output_path.is_file():
                output_path.replace(self._target)
            self._remove()

    def _remove(self) -> None:
        _sync(self._target.parent)
        # Remove the state last: without it, the leftover directory of a published file would start a new run.
        for item in self.path.iterdir():
            if item.name != STATE:
                item.unlink()
        shutil.rmtree(self.path)
        _sync(self._target.parent)


def partial_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.partial")


def rejected_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.rejected.jsonl")


def check_absent(target: Path) -> None:
    """Raise `CommandError` if the output file exists. Rejected rows alone come from a run that wrote no output."""
    if target.exists():
        raise CommandError(f"{target}: exists. Remove it or set --overwrite.", EX_CANTCREAT)


def _check_same_run(path: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    changed = [
        f"{name}: {_shown(old.get(name))}, now {_shown(new.get(name))}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    if changed:
        raise CommandError(
            f"{path}: state of another run ({'; '.join(changed)}). "
            "Repeat the command of that run to continue it, or remove the directory.",
            EX_CONFIG,
        )


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)


def _read_state(path: Path) -> _State | None:
    try:
        fields = orjson.loads((path / STATE).read_bytes())
    except FileNotFoundError:
        return None
    except orjson.JSONDecodeError:
        raise CommandError(f"{path / STATE}: damaged. Remove the directory.", EX_CONFIG) from None
    if fields.pop("version", None) != VERSION:
        raise CommandError(f"{path / STATE}: state of another version. Remove the directory.", EX_CONFIG)
    return _State(**fields | {"counts": Counts(**fields["counts"])})


def _write_state(path: Path, state: _State) -> None:
    new = path / f"{STATE}.new"
    _append(new, 0, orjson.dumps({"version": VERSION, **asdict(state)}))
    new.replace(path / STATE)
    _sync(path)


def _append(path: Path, size: int, data: bytes) -> None:
    """Write data after the first `size` bytes of a file, truncate the rest, and fsync."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(size)
        file.seek(size)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    """Wait until renames in a directory are on disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandError(
            f"{path}: cannot be written ({error.strerror or error}). Check the path and the free space.", EX_CANTCREAT
        ) from None
