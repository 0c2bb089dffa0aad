"""Conventions shared by the commands `attendant` and `attendant-model`, described in docs/commands.md."""

import argparse
import difflib
import errno
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

EX_OK = 0
EX_NEGATIVE = 1
EX_USAGE = 2
EX_DATAERR = 65
EX_UNAVAILABLE = 69
EX_SOFTWARE = 70
EX_CANTCREAT = 73
EX_CONFIG = 78
EX_INTERRUPTED = 130
EX_PIPE = 141
STATUSES = {
    EX_OK: "success",
    EX_NEGATIVE: "the command finished with a negative result: rejected rows or a missed threshold",
    EX_USAGE: "wrong usage",
    EX_DATAERR: "unusable input: a text, a data file, or model files",
    EX_UNAVAILABLE: "a server, a download or the engine failed",
    EX_SOFTWARE: "internal error",
    EX_CANTCREAT: "output cannot be written",
    EX_CONFIG: "invalid setting, configuration or artifact, or a missing package",
    EX_INTERRUPTED: "interrupted with Ctrl-C",
    EX_PIPE: "the reader of standard output closed the pipe",
}
"""Exit statuses: the numbers in sysexits.h, and 128 plus the signal number."""
_OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9-]*(=.*)?", re.DOTALL)
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)


class ReportedError(Exception):
    """An error that a command reports before it exits, in one line that names the cause and a remedy."""

    status: int


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line that names the option, the limit and a remedy."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=f"{epilog.rstrip()}\n\nExit statuses: docs/commands.md",
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or an error. argparse would ignore a failed write to standard output."""
        if message:
            stream = file or sys.stderr
            stream.write(message)
            stream.flush()

    def parse_args(self, args: Any = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse all arguments. The error for unknown arguments names only options, since texts may be confidential."""
        options: argparse.Namespace
        options, extra = self.parse_known_args(args, namespace)
        if extra:
            self.error(self._describe_extra(extra))
        return options

    def _describe_extra(self, extra: Sequence[str]) -> str:
        name = next((item.partition("=")[0] for item in extra if _OPTION.fullmatch(item)), None)
        if name is None:
            return f"too many arguments ({len(extra)} more than expected)"
        options = [option for action in self._actions for option in action.option_strings]
        first, *others = difflib.get_close_matches(name, options, 2) or [""]
        nearest = [first, *(option for option in others if option.startswith(name))]
        return f"unknown option {name}" + (f" (did you mean {' or '.join(nearest)}?)" if first else "")

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with status `EX_USAGE`."""
        text = message.removeprefix("argument ").rstrip(".")
        self.exit(EX_USAGE, f"{self.prog}: {text}. See: {self.prog} --help\n")


class Subcommand(Parser):
    """The parser of a subcommand. Its errors name the subcommand and suggest its options."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, extra = super().parse_known_args(args, namespace)
        if extra:
            self.error(self._describe_extra(extra))
        return options, extra


LANGUAGE_CODE, USE_LANGUAGE_CODE = re.compile("[a-z]{2,3}"), "Use one of ISO 639, such as en or de"


def language_code(text: str) -> str:
    """Validate a language code; argparse reports the error."""
    if not LANGUAGE_CODE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"not a language code ({text[:20]!r}). {USE_LANGUAGE_CODE}")
    return text


def output_path(text: str) -> Path:
    """Validate an output path; argparse reports the error."""
    if text == "-":
        raise argparse.ArgumentTypeError('"-" is not supported. Name a file, or ./- for a file of that name')
    path = Path(text)
    try:
        return path.resolve() if path.is_symlink() else path  # write the file that the link names, and keep the link
    except (OSError, RuntimeError):  # such as a loop of links: writing will report it
        return path


MESSAGE_REWRITES = {
    "Value error, ": "", "Extra inputs are not permitted": "unknown option. Check its spelling",
    "Field required": "missing. Add it", "Input should": "must", "List should": "must", "Tuple should": "must",
    "String should": "must", "a valid tuple": "an array",
}  # fmt: skip
"""Replacements for pydantic's and Python's terms in messages."""


def plain_message(message: str) -> str:
    """Return a message of pydantic in the words of this project, without a final period."""
    for before, after in MESSAGE_REWRITES.items():
        message = message.replace(before, after)
    return message.removesuffix(".")


def run_command(program: str, command: Callable[[], int]) -> int:
    """Run a command and return its exit status, even if it is interrupted or cannot write to standard output."""
    _open_closed_streams()
    try:
        status = command()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EX_INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return EX_PIPE
    except OSError as error:
        if error.errno not in FULL_DISK or error.filename is not None:
            raise
        _discard_output()
        print(
            f"{program}: standard output: cannot be written ({error.strerror}). Check the free space.", file=sys.stderr
        )
        return EX_CANTCREAT
    return status


def _open_closed_streams() -> None:
    """Open /dev/null as each standard stream that is closed. Otherwise, sockets and files would get its descriptor."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _discard_output() -> None:
    """Discard buffered output, which the interpreter would otherwise write at exit, reporting the error again."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, sys.stdout.fileno())
    os.close(descriptor)
