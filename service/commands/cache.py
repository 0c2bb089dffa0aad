"""`attendant cache`: the artifacts that `attendant serve SOURCE` exported, their sizes, and their removal."""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from model.artifact.console import EX_CANTCREAT, EX_DATAERR, EX_NEGATIVE, EX_OK, Subcommand
from service.commands.arguments import CommandError, Parser
from service.config import Settings, load_settings
from service.model_cache import CachedArtifact, cache_directory, cached_artifacts, remove_artifact

DESCRIPTION = """\
List, show or remove the artifacts that `attendant serve SOURCE` exported to ATTENDANT_CACHE_DIR. A removed artifact is
exported again when a server needs it. A running server keeps its model until it ends."""
EPILOG = """\
NAME is a name in the list, or a source that only one artifact has. The commands exit with status 1 if an artifact is
unusable.

examples:
  attendant cache list
  attendant cache show BAAI/bge-small-en-v1.5
  attendant cache remove BAAI--bge-small-en-v1.5-1c5d0f2a9b7e4c31
  attendant cache remove --unusable
"""
COLUMNS = ("name", "source", "revision", "MiB", "exported")


def run(arguments: Sequence[str]) -> int:
    """Run one command and return the exit status. Raises `CommandError`, `ConfigError` or `ExportError`."""
    parser = _parser()
    options = parser.parse_args(arguments)
    settings: Settings = load_settings()
    cache = cache_directory(options.cache_dir or settings.cache_dir)
    with _file_errors(cache):
        found = cached_artifacts(cache)
    if options.action == "remove":
        return _remove(parser, options, cache, found)
    if options.action == "show":
        return _show(_find(found, options.name, cache), as_json=options.json)
    return _list(found, cache, as_json=options.json)


@contextmanager
def _file_errors(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = f"{error.filename or cache}: cannot be read or removed ({error.strerror or error})"
        raise CommandError(f"{problem}. Check the permissions.", EX_CANTCREAT) from None


def _parser() -> Parser:
    parser = Parser("attendant cache", DESCRIPTION, EPILOG)
    actions = parser.add_subparsers(dest="action", metavar="COMMAND", parser_class=Subcommand)
    listing, show, remove = (
        actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", epilog="")
        for name, text in (
            ("list", "list the artifacts (the default)"),
            ("show", "describe one artifact"),
            ("remove", "remove artifacts"),
        )
    )
    show.add_argument("name", metavar="NAME")
    remove.add_argument("names", metavar="NAME", nargs="*")
    remove.add_argument("--all", action="store_true", help="remove every artifact")
    remove.add_argument("--unusable", action="store_true", help="remove damaged artifacts and those of other versions")
    for each in (listing, show):
        each.add_argument("--json", action="store_true", help="print JSON")
    command: argparse.ArgumentParser
    for command in (parser, listing, show, remove):
        default = None if command is parser else argparse.SUPPRESS  # the option may come before or after the command
        text = "directory of the cache (default: ATTENDANT_CACHE_DIR)"
        command.add_argument("--cache-dir", type=Path, metavar="DIR", default=default, help=text)
    parser.set_defaults(json=False)
    return parser


def _list(found: Sequence[CachedArtifact], cache: Path, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps([_record(item) for item in found], indent=2))
    elif not found:
        print(f"{cache}: no artifacts")
    else:
        rows = [COLUMNS, *(_row(item) for item in found)]
        widths = [max(len(row[place]) for row in rows) for place in range(len(COLUMNS))]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        print(f"{sum(item.size for item in found) / 2**20:,.0f} MiB in {cache}")
    return EX_NEGATIVE if any(item.problem for item in found) else EX_OK


def _row(item: CachedArtifact) -> tuple[str, ...]:
    exported = time.strftime("%Y-%m-%d %H:%M", time.localtime(item.exported))
    if item.artifact is None:
        return item.name, "(unusable)", "", f"{item.size / 2**20:,.0f}", exported
    manifest = item.artifact.manifest
    return item.name, manifest.source, (manifest.revision or "")[:12], f"{item.size / 2**20:,.0f}", exported


def _show(item: CachedArtifact, *, as_json: bool) -> int:
    record = _record(item)
    if as_json:
        print(json.dumps(record, indent=2))
    else:
        for name, value in record.items():
            print(f"{name:<17}{value}")
    return EX_NEGATIVE if item.problem else EX_OK


def _record(item: CachedArtifact) -> dict[str, Any]:
    exported = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(item.exported))
    record = {"name": item.name, "directory": str(item.directory), "bytes": item.size, "exported": exported}
    if item.artifact is None:
        return record | {"problem": item.problem}
    manifest = item.artifact.manifest
    return record | {
        "source": manifest.source,
        "revision": manifest.revision,
        "license": manifest.license,
        "family": manifest.architecture.family,
        "dimensions": manifest.embedding.dimensions,
        "max_input_tokens": manifest.max_input_tokens,
        "digest": f"sha256:{item.artifact.digest}",
    }


def _find(found: Sequence[CachedArtifact], name: str, cache: Path) -> CachedArtifact:
    """Return the artifact of this name or source. Raises `CommandError`."""
    matching = [item for item in found if item.name == name] or [
        item for item in found if item.artifact is not None and item.artifact.manifest.source == name
    ]
    if len(matching) == 1:
        return matching[0]
    if not found:
        raise CommandError(f"{name}: not found, {cache} has no artifacts. Set --cache-dir.", EX_DATAERR)
    names = ", ".join(item.name for item in matching or found)
    problem = "source of several artifacts" if matching else "no such artifact"
    raise CommandError(f"{name}: {problem} in {cache} (artifacts: {names}). Use one of the names.", EX_DATAERR)


def _remove(parser: Parser, options: argparse.Namespace, cache: Path, found: Sequence[CachedArtifact]) -> int:
    if bool(options.names) + options.all + options.unusable != 1:
        parser.error("remove: set NAME, --all or --unusable, and only one of them")
    chosen = [_find(found, name, cache) for name in options.names]
    if options.all or options.unusable:
        chosen = [item for item in found if options.all or item.problem]
    for item in {item.name: item for item in chosen}.values():
        with _file_errors(cache):
            removed = remove_artifact(cache, item.name)
        if not removed:
            problem = f"{item.name}: in use by an exporter"
            raise CommandError(f"{problem}. Wait for its end, or stop it.", EX_CANTCREAT)
        print(f"removed {item.directory} ({item.size / 2**20:,.0f} MiB)")
    return EX_OK
