"""`attendant serve | embed | options`."""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from itertools import islice

import orjson
import uvloop
from prometheus_client import CollectorRegistry

from model.artifact import ArtifactError
from model.tokenizer import Source
from service.app import EX_CONFIG, EX_OK, LOADING_THREAD, App
from service.config import ConfigError, Settings, describe_options, load_settings
from service.engine.engine import Engine, LoadedModel
from service.engine.requests import EncodeRequest, Input
from service.errors import ServiceError
from service.logs import set_up_logging
from service.metrics import Metrics

USAGE = """usage: attendant COMMAND

  serve [OPTION...]   serve the model over REST and gRPC; attendant serve --help lists the options
  embed [TEXT...]     print the vector of each text, or of each line of standard input, as a line of JSON
  options             print the table of options in Markdown
"""
EMBED_BATCH = 32


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit status."""
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or [""]
    try:
        if command == "serve":
            return _serve(load_settings(rest))
        if command == "embed":
            return asyncio.run(_embed(load_settings(), rest or (line.rstrip("\n") for line in sys.stdin)))
        if command == "options":
            print(describe_options(), end="")
            return EX_OK
    except (ConfigError, ArtifactError) as error:
        print(f"attendant: {error}", file=sys.stderr)
        return EX_CONFIG
    asked = command in ("-h", "--help", "help")
    print(USAGE, end="", file=sys.stdout if asked else sys.stderr)
    return EX_OK if asked else 2


def _serve(settings: Settings) -> int:
    set_up_logging(settings.log_level, settings.log_format)

    async def run() -> int:
        return await App(settings).run()

    status = uvloop.run(run())
    if any(thread.name == LOADING_THREAD and thread.is_alive() for thread in threading.enumerate()):
        # Told to stop while the runtime was loading: it cannot be interrupted, and must not meet a dying interpreter.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(status)
    return status


async def _embed(settings: Settings, texts: Iterable[str]) -> int:
    engine = Engine(LoadedModel.load(settings), settings, Metrics(CollectorRegistry()))
    try:
        for batch in _batches(iter(texts)):
            found = await engine.encode(EncodeRequest(tuple(Input(Source(text)) for text in batch)))
            for result in found.results:
                assert result.pooled is not None
                sys.stdout.buffer.write(orjson.dumps(result.pooled.values, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
            sys.stdout.flush()
    except ServiceError as error:
        print(f"attendant: {error.message}", file=sys.stderr)
        return 1
    finally:
        await engine.close()
    return EX_OK


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(texts, EMBED_BATCH)):
        yield batch


if __name__ == "__main__":
    sys.exit(main())
