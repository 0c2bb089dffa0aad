"""The command line of `attendant serve`: a flag per option, and the model to serve."""

import argparse
import json
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from model.artifact.console import Parser

MODEL_SELECTION = ("model_dir", "models", "models_file")
"""Options that select models. A source on the command line replaces them."""
SERVE_EPILOG = """\
Each option is also an environment variable, such as ATTENDANT_REST_PORT, and a line of .env.

examples:
  attendant serve BAAI/bge-small-en-v1.5
  attendant serve --model-dir models/all-MiniLM-L6-v2
  attendant serve --models small=models/bge-small,large=models/bge-large --rest-port 9000"""
SOURCE_HELP = (
    "model to serve instead of --model-dir: the directory of an artifact, or a model that is exported first, which is "
    'a Hugging Face model ID (ORG/NAME or ORG/NAME@revision), a directory of published files, or "default"'
)


def parse_flags(arguments: list[str], fields: Mapping[str, FieldInfo]) -> dict[str, Any]:
    """Return the options on the command line, keyed by field, and `source`, if given.

    Exits after --help and on usage errors.
    """
    parser = Parser("attendant serve", "Serve a model over REST and gRPC.", SERVE_EPILOG)
    parser.add_argument("source", nargs="?", default=argparse.SUPPRESS, metavar="SOURCE", help=SOURCE_HELP)
    for name, field in fields.items():
        kind: dict[str, Any] = {"metavar": _metavar(name, field)}
        if field.annotation is bool:
            kind = {"action": argparse.BooleanOptionalAction}
        description, default = describe_option(field)
        text = f"{description} (default: {default})" if default else description
        text = text.replace("%", "%%")
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, default=argparse.SUPPRESS, help=text, **kind)
    flags = vars(parser.parse_args(arguments))
    if flags.get("source") == "":
        parser.error("SOURCE is empty: name a model")
    conflict = next((name for name in MODEL_SELECTION if name in flags and "source" in flags), None)
    if conflict is not None:
        parser.error(f"SOURCE and --{conflict.replace('_', '-')} both select a model: remove one")
    return flags


def describe_option(field: FieldInfo) -> tuple[str, str]:
    """Return the description of an option on one line, and its default value, "" if there is none."""
    default = field.get_default()
    shown = "" if default in (None, "") else json.dumps(default, default=str).strip('"')
    return " ".join((field.description or "").split()), shown


def _metavar(name: str, field: FieldInfo) -> str:
    """Return the placeholder for a value: its choices, unit or kind."""
    if get_origin(field.annotation) is Literal:
        return "{" + ",".join(get_args(field.annotation)) + "}"
    last = name.rpartition("_")[2].upper()
    return "N" if field.annotation is int and last not in ("PORT", "MS", "BYTES") else last
