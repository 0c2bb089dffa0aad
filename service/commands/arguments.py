"""Argument types shared by the commands. Their errors state the actual value, the limit and a remedy."""

import argparse
import importlib
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import get_args

from model.artifact import console
from model.artifact.console import EX_CONFIG
from service.config import PrecisionOption

PRECISIONS: tuple[PrecisionOption, ...] = get_args(PrecisionOption)


class CommandError(Exception):
    """An error that makes a command exit with `status`. The message is one line without input text."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[type["CommandError"], tuple[str, int]]:
        """Pickle the constructor arguments, so that the error can cross processes."""
        return type(self), (str(self), self.status)


class Parser(console.Parser):
    """An argument parser with model selection options."""

    def add_source_options(self) -> None:
        """Add options that select a model in this process or on a server."""
        add = self.add_argument
        help_text = "name or alias in ATTENDANT_MODELS or on the server (default: the first model)"
        add("--model", metavar="NAME", help=help_text)
        add("--server", metavar="URL", help="server: http://, https://, grpc:// or grpcs:// (default: run an engine)")
        add("--api-key-file", type=Path, metavar="FILE", help="file with the server's API key on its first line")
        add("--ca-file", metavar="FILE", help="PEM file with the CAs of the server's certificate (default: public CAs)")
        add("--cert-file", metavar="FILE", help="PEM file with the client certificate that the server requires")
        add("--key-file", metavar="FILE", help="PEM file with the key of the client certificate")

    def check_source_options(self, options: argparse.Namespace) -> None:
        """Exit with an error if server options are set without a server."""
        for name in ("api_key_file", "ca_file", "cert_file", "key_file"):
            if getattr(options, name) is not None and options.server is None:
                self.error(f"--{name.replace('_', '-')}: set without --server. Remove it")


def import_extra(module: str, extra: str, subject: str) -> ModuleType:
    """Return a module that needs an extra. Raises `CommandError` "<subject> is not installed" with a remedy."""
    try:
        return importlib.import_module(module)
    except ImportError:
        remedy = f"Install the extra \"{extra}\": pip install -c constraints.txt -e '.[cpu,{extra}]'."
        raise CommandError(f"{subject} is not installed. {remedy}", EX_CONFIG) from None


def number(low: str, high: str, remedy: str = "") -> Callable[[str], Fraction]:
    """Return a type for decimal numbers between `low` and `high`, parsed exactly: "0.1" is 1/10.

    `remedy` replaces "Use <low> to <high>" in errors.
    """
    remedy = remedy or f"Use {low} to {high}"

    def parse(text: str) -> Fraction:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isnan(value):
            raise argparse.ArgumentTypeError(f'not a number ("{_shorten(text)}"). {remedy}')
        # Check the range first: "1e999999999" as an exact value would have a billion digits.
        if not float(low) <= value <= float(high):
            bound = f"minimum {low}" if value < float(low) else f"limit {high}"
            raise argparse.ArgumentTypeError(f"out of range ({value:g}, {bound}). {remedy}")
        return Fraction(repr(value))

    return parse


def integer(low: int, high: int, remedy: str = "") -> Callable[[str], int]:
    """Return a type for integers between `low` and `high`; `remedy` is as in `number`."""
    remedy = remedy or f"Use {low} to {high}"

    def parse(text: str) -> int:
        value = number(str(low), str(high), remedy)(text)
        if value.denominator != 1:
            raise argparse.ArgumentTypeError(f"not an integer ({float(value):g}). {remedy}")
        return int(value)

    return parse


def _shorten(text: str) -> str:
    return text if len(text) <= 20 else f"{text[:20]}..."
