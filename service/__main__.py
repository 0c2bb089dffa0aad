"""`attendant serve | embed | options`."""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import orjson
import uvloop
from prometheus_client import CollectorRegistry

from model.artifact import ArtifactError
from model.tokenizer import TokenizerInput
from service import __version__
from service.app import EX_CONFIG, EX_OK, LOADING_THREAD, App
from service.config import ConfigError, Settings, describe_options, load_settings
from service.engine.model_loader import LoadedModel
from service.engine.schema.encode import EncodeRequest, EncodeResponse, Input
from service.errors import MalformedRequest, ServiceError
from service.logs import set_up_logging
from service.metrics import Metrics

if TYPE_CHECKING:
    from service.engine.engine import Engine

USAGE = """usage: attendant COMMAND

  serve [OPTION...]   serve a model over REST and gRPC; attendant serve --help lists the options
  embed [TEXT...]     print the embedding of each text, or of each line of standard input, as one line of JSON;
                      texts over the token limit are truncated; options come from the environment
                      (ATTENDANT_MODEL_DIR, ...)
  options             print the table of options in Markdown
  --version           print the version
"""
EMBED_BATCH = 32


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit status."""
    status = _run(arguments)
    if any(thread.name == LOADING_THREAD and thread.is_alive() for thread in threading.enumerate()):
        # A signal arrived, or a port could not be bound, while the runtime was loading: it cannot be interrupted, and
        # may crash at interpreter exit.
        logging.shutdown()
        os._exit(status)
    return status


def _run(arguments: list[str] | None) -> int:
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or [""]
    try:
        if command == "serve":
            return _serve(load_settings(rest))
        if command == "embed" and not _is_option(rest):
            return asyncio.run(_embed(load_settings(), rest or _read_lines()))
        if command == "--version":
            print(f"attendant {__version__}")
            return EX_OK
        if command == "options":
            print(describe_options(), end="")
            return EX_OK
    except (ConfigError, ArtifactError) as error:
        print(f"attendant: {error}", file=sys.stderr)
        return EX_CONFIG
    wants_help = not {command, *rest[:1]}.isdisjoint(("-h", "--help", "help"))
    print(USAGE, end="", file=sys.stdout if wants_help else sys.stderr)
    return EX_OK if wants_help else 2


def _serve(settings: Settings) -> int:
    set_up_logging(settings.log_level, settings.log_format)

    async def run() -> int:
        return await App(settings).run()

    return uvloop.run(run())


def _is_option(rest: list[str]) -> bool:
    """Return whether `embed` got an option instead of a text; it has no options."""
    return bool(rest) and rest[0].startswith("-") and not rest[0].startswith("- ")


def _read_lines() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise MalformedRequest("not UTF-8", "Send text in UTF-8.", field=f"line {number}") from None


async def _embed(settings: Settings, lines: Iterable[str]) -> int:
    from service.engine.engine import Engine  # serve imports it while the model loads

    engine = Engine(LoadedModel.load(settings), settings, Metrics(CollectorRegistry()))
    truncated = 0
    try:
        for batch in _batches(enumerate(lines, start=1)):
            for response in await asyncio.gather(*(_embed_line(engine, number, line) for number, line in batch)):
                truncated += response.truncated_inputs
                vector = response.results[0].pooled
                assert vector is not None
                sys.stdout.buffer.write(orjson.dumps(vector.values, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
            sys.stdout.flush()
    except ServiceError as error:
        return _fail(error.message)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter reports it again at exit
        return 1
    finally:
        await engine.close()
    if truncated:
        limit = engine.info.max_input_tokens
        print(f"attendant: truncated {truncated} lines to {limit} tokens, the limit of the model", file=sys.stderr)
    return EX_OK


async def _embed_line(engine: "Engine", number: int, line: str) -> EncodeResponse:
    try:
        return await engine.encode(EncodeRequest((Input(TokenizerInput(line)),), truncation="right"))
    except ServiceError as error:
        error.message = error.message.replace("inputs[0]", f"line {number}", 1)
        raise


def _batches(lines: Iterator[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    while batch := list(islice(lines, EMBED_BATCH)):
        yield batch


def _fail(message: str) -> int:
    sys.stdout.flush()
    print(f"attendant: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
