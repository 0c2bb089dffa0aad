"""Rules shared by both programs: exit statuses, errors, and unwritable standard output."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from model.__main__ import _parser as model_parser
from model.__main__ import main as model_main
from model.artifact.console import STATUSES, Parser, run_command
from service.__main__ import main as service_main
from service.commands import ask, compare, embed, evaluate, size
from tests.conftest import ROOT, run_python

LONG = "x" * 100_000
"""Exceeds the stdout buffer, so that the write itself fails."""


def print_long() -> int:
    print(LONG)
    return 0


COMMANDS: dict[str, Callable[[], int]] = {
    "attendant": lambda: service_main(["size", "--texts-per-second", "1", "--mean-tokens", "1"]),
    "attendant-model": lambda: model_main(["verify", str(ROOT / "models" / "all-MiniLM-L6-v2")]),
    "long output": lambda: run_command("long output", print_long),
}


@pytest.mark.parametrize("program", COMMANDS)
def test_full_disk_is_an_error(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert COMMANDS[program]() == 73
    problem = "standard output: cannot be written (No space left on device). Check the free space."
    assert capsys.readouterr().err == f"{program}: {problem}\n"


@pytest.mark.parametrize(("main", "command"), [(service_main, "serve"), (service_main, "size"), (model_main, "export")])
def test_help_on_a_full_disk_is_an_error(
    main: Callable[[list[str]], int], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main([command, "--help"]) == 73


@pytest.mark.parametrize("program", COMMANDS)
def test_closed_pipe_ends_the_command_silently(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert COMMANDS[program]() == 141
    assert capsys.readouterr().err == ""


def test_closed_standard_streams_are_not_reused(tmp_path: Path) -> None:
    """Log lines would be written to whatever file or socket got the descriptor of a closed standard error."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from model.artifact.console import run_command\n"
        "def command():\n"
        "    with open(sys.argv[1], 'w') as file:\n"
        "        print(sys.stdin.read())\n"
        "        print('error', file=sys.stderr, flush=True)\n"
        "        print(file.fileno(), file=file)\n"
        "    return 0\n"
        "sys.exit(run_command('attendant', command))\n"
    )
    command = shlex.join([sys.executable, str(script), str(tmp_path / "out")])
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(f"exec {command} <&- >&- 2>&-", check=True, shell=True, env=environment)
    assert int((tmp_path / "out").read_text()) > 2


def test_other_errors_of_the_system_are_not_hidden() -> None:
    def fail() -> int:
        raise PermissionError(13, "Permission denied", "file")

    with pytest.raises(PermissionError):
        run_command("attendant", fail)


@pytest.mark.parametrize(
    ("main", "module"), [(service_main, "service.commands.size.run"), (model_main, "model.__main__._verify")]
)
def test_interrupted_command_exits_with_130(
    main: Callable[[list[str]], int], module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C must not print a traceback."""

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, interrupt)
    assert main(["size"] if main is service_main else ["verify", "models/none"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("module", "imported"), [("service.__main__", "service.config"), ("model.__main__", "numpy.linalg")]
)
def test_interrupted_import_ends_a_command_silently(module: str, imported: str) -> None:
    code = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(name, *_):\n"
        f"        if name == {imported!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        f"sys.meta_path.insert(0, Interrupt)\nimport {module}"
    )
    result = run_python("-c", code)
    assert (result.returncode, result.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (service_main, ["embed", "in.txt", "-o", "-"]),
        (model_main, ["export", "default", "-o", "-"]),
        (model_main, ["train", "config.toml", "-o", "-"]),
        (model_main, ["example", "ambiguous-words", "-o", "-"]),
    ],
)
def test_dash_is_not_an_output_file(
    main: Callable[[list[str]], int], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    error = capsys.readouterr().err
    assert '"-" is not supported. Name a file, or ./- for a file of that name.' in error
    assert error.count("\n") == 1


def test_page_lists_every_exit_status() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", page, re.MULTILINE)
    assert {int(number): meaning for number, meaning in rows} == STATUSES


def test_examples_in_help_are_accepted() -> None:
    """Covers every command whose parser runs without files."""
    parsers = {"embed": embed._parser, "ask": ask._parser, "compare": compare._parser}
    parsers |= {"evaluate": evaluate._parser, "size": size._parser}
    for name, make_parser in parsers.items():
        parser = make_parser()
        for arguments in examples(parser.epilog or "", f"attendant {name}"):
            if name != "embed" or "-o" in arguments:
                parser.parse_intermixed_args(arguments)
    for example in examples(model_parser().epilog or "", "attendant-model"):
        model_parser().parse_args(example)


def examples(epilog: str, command: str) -> list[list[str]]:
    """Return the arguments of the example commands; a backslash continues a line."""
    lines = epilog.replace("\\\n", " ").splitlines()
    found = [shlex.split(line.partition(f"{command} ")[2]) for line in lines if f"{command} " in line]
    assert found, command
    return found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dimension", "4"], "unknown option --dimension (did you mean --dimensions?)"),
        (["--dimension=4"], "unknown option --dimension (did you mean --dimensions?)"),
        (["--secret=mine"], "unknown option --secret"),
        (["in", "my secret text"], "too many arguments (1 more than expected)"),
        (["in", "- my secret", "-5"], "too many arguments (2 more than expected)"),
    ],
)
def test_error_names_options_only(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser("attendant test", "Test.", "")
    parser.add_argument("input", nargs="?")
    parser.add_argument("--dimensions")
    with pytest.raises(SystemExit) as raised:
        parser.parse_args(arguments)
    assert raised.value.code == 2
    assert capsys.readouterr().err == f"attendant test: {message}. See: attendant test --help\n"
