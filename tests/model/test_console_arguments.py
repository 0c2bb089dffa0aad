"""Arguments that a command does not have: options are named, texts are not, because they may be confidential."""

import pytest

from model.artifact.console import Parser


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
