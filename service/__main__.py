"""`attendant serve | embed | ask | compare | evaluate | size | cache | options`."""

import signal

# Ctrl-C while the rest is imported ends the process without a traceback.
if (HANDLER := signal.getsignal(signal.SIGINT)) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import asyncio
import importlib
import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from model.artifact.console import EX_CONFIG, EX_OK, EX_USAGE, ReportedError, run_command
from service import __version__, read_revision
from service.config import ConfigError, Settings, describe_options, load_serve_settings
from service.exporter import ExportError, python_path
from service.logs import set_up_logging
from service.process import LOADING_THREAD
from service.sockets import check_ports

signal.signal(signal.SIGINT, HANDLER)

if TYPE_CHECKING:
    from service.worker_link import WorkerLink

COMMANDS = ("embed", "ask", "compare", "evaluate", "size", "cache")
"""Modules of `service.commands` with a function `run`."""
USAGE = """usage: attendant COMMAND

  serve [SOURCE]      serve a model over REST and gRPC: an artifact, or a directory or Hugging Face model ID that is
                      exported first; attendant serve --help
  embed IN -o OUT     write the embeddings of the rows of a file (text, JSON lines, CSV, Parquet) as Parquet, NumPy or
                      JSON lines; attendant embed --help
  embed [TEXT...]     print the embedding of each text, or of each line of standard input, as one line of JSON;
                      texts over the token limit are truncated; options come from the environment
                      (ATTENDANT_MODEL_DIR, ...)
  ask TEXT            show the words and tokens of a text, its nearest neighbors among other texts, and which words
                      contribute to which; attendant ask --help
  compare OLD NEW     compare the embeddings of two artifacts on your texts; attendant compare --help
  evaluate DIR        measure an artifact on your labeled texts; attendant evaluate --help
  size                calculate replicas, cores and memory for a load; attendant size --help
  cache               list, show or remove the artifacts that serve SOURCE exported; attendant cache --help
  options             print the table of options in Markdown
  --version           print the version

examples:
  attendant serve BAAI/bge-small-en-v1.5
  attendant serve --model-dir models/all-MiniLM-L6-v2 --rest-port 8080
  attendant embed texts.parquet -o vectors.parquet
  attendant ask "river bank flows" "money bank grows"

Exit statuses: docs/commands.md
"""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit status."""
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or [""]
    status = run_command("attendant", lambda: _run_checked(command, rest))
    if any(thread.name == LOADING_THREAD and thread.is_alive() for thread in threading.enumerate()):
        # A signal arrived, or a port could not be bound, while the runtime was loading. Loading cannot be interrupted,
        # and the runtime may crash at interpreter exit.
        logging.shutdown()
        os._exit(status)
    return status


def _run_checked(command: str, rest: list[str]) -> int:
    try:
        return _run(command, rest)
    except ConfigError as error:
        print(f"attendant: {error}", file=sys.stderr)
        return EX_CONFIG
    except (ExportError, ReportedError) as error:
        print(f"attendant: {error}", file=sys.stderr)
        return error.status


def _run(command: str, rest: list[str]) -> int:
    if command == "serve":
        return _serve(*load_serve_settings(rest))
    if command == "worker":
        return _serve_worker(int(rest[0]))
    if command == "prepare":
        return _prepare(Settings(**json.loads(rest[0])), rest[1])
    if command in COMMANDS:
        return _run_offline(command, rest)
    if command == "--version":
        print(f"attendant {__version__}, revision {read_revision()}")
        return EX_OK
    if command == "options":
        print(describe_options(), end="")
        return EX_OK
    wants_help = not {command, *rest[:1]}.isdisjoint(("-h", "--help", "help"))
    unknown = f"attendant: {command}: no such command.\n\n" if command and not wants_help else ""
    print(unknown + USAGE, end="", file=sys.stdout if wants_help else sys.stderr)
    return EX_OK if wants_help else EX_USAGE


def _run_offline(command: str, rest: list[str]) -> int:
    # imported here, because the server does not need commands
    from service.commands.arguments import CommandError

    try:
        status: int = importlib.import_module(f"service.commands.{command}").run(rest)
    except CommandError as error:
        print(f"attendant {command}: {error}", file=sys.stderr)
        return error.status
    return status


def _serve(settings: Settings, source: str | None) -> int:
    set_up_logging(settings.log_level, settings.log_format)
    if source is not None:
        # Until the server installs signal handlers, signals must also stop the exporter.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        prepare = prepare_source if settings.workers == 1 else _prepare_in_process
        settings = settings.model_copy(update={"model_dir": prepare(settings, source)})

    if settings.workers != 1:
        from service.supervisor import Supervisor, most_workers

        if settings.workers or most_workers() > 1:
            return asyncio.run(Supervisor.serve(settings))
        settings = settings.model_copy(update={"workers": 1})
    return _run_app(settings)


def prepare_source(settings: Settings, source: str) -> Path:
    """Return the artifact directory of a source. Raises `ExportError` or `SourceError`."""
    from service.model_cache import cache_directory, prepare_artifact

    return prepare_artifact(source, cache_directory(settings.cache_dir), lambda: check_ports(settings))


def _prepare_in_process(settings: Settings, source: str) -> Path:
    """Call `prepare_source` in a child process, so that the supervisor loads neither NumPy nor the weights."""
    options = settings.model_dump_json(exclude_unset=True)
    command = [sys.executable, "-P", "-m", "service", "prepare", options, source]
    environment = os.environ | {"PYTHONPATH": python_path()}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:  # noqa: S603
        try:
            directory, _ = process.communicate()
        except BaseException:
            process.terminate()
            raise
    if process.returncode != EX_OK:  # the child has printed the reason
        sys.exit(process.returncode)
    return Path(directory)


def _prepare(settings: Settings, source: str) -> int:
    """Print the artifact directory of a source. Not a command for users."""
    set_up_logging(settings.log_level, settings.log_format)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    print(prepare_source(settings, source), end="")
    return EX_OK


def _serve_worker(descriptor: int) -> int:
    """Serve as a worker of the supervisor at the other end of this socket. Not a command for users."""
    from service.worker_link import WorkerLink, die_with_parent

    die_with_parent()
    link = WorkerLink.open(descriptor)
    settings = Settings(**link.start.settings)
    set_up_logging(settings.log_level, settings.log_format, link.start.number)
    link.slot.use()
    try:
        return _run_app(settings, link)
    finally:
        link.slot.seal()


def _run_app(settings: Settings, link: "WorkerLink | None" = None) -> int:
    # Imported here, because the supervisor does not need them.
    import uvloop

    from service.app import App

    async def run() -> int:
        return await App(settings, link).run()

    return uvloop.run(run())


if __name__ == "__main__":
    sys.exit(main())
