"""The models file: its format, and the errors of an invalid one."""

import re
from pathlib import Path

import pytest

from service.config import ConfigError
from service.models_file import ModelEntry, parse_models_file
from tests.conftest import run_python

PATH = Path("models.toml")
DIGEST = "sha256:" + 64 * "a"


def parse(text: str) -> list[ModelEntry]:
    return list(parse_models_file(PATH, text.encode()))


def test_file_lists_models_in_order() -> None:
    small, large = parse(f"""
        [[models]]
        name = "small"
        source = "models/small"
        digest = "{DIGEST}"
        aliases = ["s", "text-embedding-3-small"]
        [[models]]
        name = "org/large"
        source = "org/large@main"
    """)
    assert (small.name, small.source, small.digest) == ("small", "models/small", DIGEST)
    assert small.aliases == ("s", "text-embedding-3-small")
    assert (large.name, large.source, large.digest, large.aliases) == ("org/large", "org/large@main", None, ())


ENTRY = '[[models]]\nname = "a"\nsource = "x"\n'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", r"models: missing"),
        ("models = []", r"models: .*at least 1"),
        ("[[models]]\nname = 'a'", r"models\[0\]\.source: missing"),
        ("[[models]]\nsource = 'a'", r"models\[0\]\.name: missing"),
        (ENTRY + "source = 'y'", r"is not TOML \(Cannot overwrite a value"),
        (ENTRY + "sorce = 'y'", r"models\[0\]\.sorce: unknown key \(known: name, source, digest, aliases\)"),
        (ENTRY + "[model]", r"model: unknown key \(known: models\)"),
        (
            ENTRY + "[[models]]\nname = 'a b'\nsource = 'x'",
            r"models\[1\]\.name: must be up to 128 ASCII .* \(a b\)",
        ),
        (ENTRY + "aliases = ['a,b']", r"models\[0\]\.aliases\[0\]: must be up to 128 ASCII .* \(a,b\)"),
        (
            ENTRY + "digest = 'sha256:12'",
            r"models\[0\]\.digest: must be sha256: and 64 hexadecimal digits \(sha256:12\)",
        ),
        (ENTRY + "aliases = 'b'", r"models\[0\]\.aliases: must be a list"),
        (ENTRY + ENTRY, r'"a" is a name or alias of two models'),
        (ENTRY + "aliases = ['a']", r'"a" is a name or alias of two models'),
        ("\xff", r"is not TOML"),
    ],
)
def test_invalid_file_is_rejected(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(text)
    message = str(raised.value)
    assert re.match(f"ATTENDANT_MODELS_FILE: {PATH}:? {problem}", message), message
    assert message.endswith(".")


def test_file_that_is_not_utf8_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"ATTENDANT_MODELS_FILE: models\.toml is not UTF-8"):
        parse_models_file(PATH, b"\xff")


def test_server_exits_with_one_line_for_a_missing_file(tmp_path: Path) -> None:
    ended = run_python(
        "-m", "service", "serve", models_file=tmp_path / "none.toml", rest_port=0, grpc_port=0, admin_port=0
    )
    assert (ended.returncode, ended.stdout) == (78, "")
    assert "ATTENDANT_MODELS_FILE: cannot read" in ended.stderr
