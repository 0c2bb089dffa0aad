"""`attendant embed`: embeddings of texts as lines of JSON."""

import asyncio
import os
import sys
from collections.abc import Iterable

import orjson

from service.commands.lines import NumberedLine, encode_lines, open_engine, read_lines
from service.config import Settings, load_settings
from service.errors import ServiceError


def run(texts: list[str]) -> int:
    """Print the embedding of each text, or of each line of standard input; return 0, or 1 after an invalid text.

    Raises `ConfigError` or `ArtifactError`.
    """
    lines = enumerate(texts, start=1) if texts else read_lines(sys.stdin.buffer)
    return asyncio.run(_embed(load_settings(), lines))


async def _embed(settings: Settings, lines: Iterable[NumberedLine]) -> int:
    truncated = 0
    async with open_engine(settings) as engine:
        try:
            async for response in encode_lines(engine, lines):
                truncated += response.truncated_inputs
                for result in response.results:
                    assert result.pooled is not None
                    line = orjson.dumps(result.pooled.values, option=orjson.OPT_SERIALIZE_NUMPY)
                    sys.stdout.buffer.write(line + b"\n")
                sys.stdout.flush()
        except ServiceError as error:
            sys.stdout.flush()
            print(f"attendant: {error.message}", file=sys.stderr)
            return 1
        except BrokenPipeError:
            # The interpreter flushes standard output at exit and would report the error again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        limit = engine.info.max_input_tokens
    if truncated:
        print(f"attendant: truncated {truncated} lines to {limit} tokens, the limit of the model", file=sys.stderr)
    return 0
