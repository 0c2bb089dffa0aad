"""Models from the options and from the models file."""

import re
from pathlib import Path

import pytest

from model.artifact.names import NAME_FORMAT
from service.config import ConfigError, Settings, load_settings
from service.model_options import ModelOption
from service.models_file import ModelEntry, parse_models_file
from tests.conftest import run_python

PATH = Path("models.toml")
DIGEST = "0123456789abcdef" * 4


def parse(text: str) -> list[ModelEntry]:
    return list(parse_models_file(PATH, text.encode()))


def test_file_lists_models_in_order() -> None:
    small, large = parse(f"""
        [[models]]
        name = "small"
        source = "models/small"
        digest = "sha256:{DIGEST}"
        aliases = ["s", "text-embedding-3-small"]
        [[models]]
        name = "org/large"
        source = "org/large@main"
    """)
    assert (small.name, small.source, small.digest) == ("small", "models/small", f"sha256:{DIGEST}")
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


def served(**options: str) -> tuple[ModelOption, ...]:
    return Settings(**options).served_models


def test_models_have_names_digests_and_aliases() -> None:
    models = f"org/a=/srv/a@sha256:{DIGEST}, b = /srv/b=c@home ,"
    assert served(models=models, model_aliases="x,y=b,z = b", model_dir="/elsewhere") == (
        ModelOption(Path("/srv/a"), DIGEST, "org/a", ("x",)),
        ModelOption(Path("/srv/b=c@home"), None, "b", ("y", "z")),
    )


MODELS, ALIASES = "ATTENDANT_MODELS: ", "ATTENDANT_MODEL_ALIASES: "
NOT_A_MODEL = " is not name=directory. Separate models by commas."
NOT_A_NAME = f"a name {NAME_FORMAT} ({{}}). Choose another name."
NOT_A_DIGEST = 'the digest of "a" is not sha256: and 64 hexadecimal digits. Copy it from attendant-model verify.'
UNKNOWN = '"f" in "e=f" is not a name in ATTENDANT_MODELS. Add it there.'
TAKEN = '"c" is the name of a model or of another alias too. Rename one.'


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": "a"}, f'{MODELS}"a"{NOT_A_MODEL}'),
        ({"models": "a="}, f'{MODELS}"a="{NOT_A_MODEL}'),
        ({"models": "=a"}, f'{MODELS}"=a"{NOT_A_MODEL}'),
        ({"models": "a b=c"}, MODELS + NOT_A_NAME.format("'a b'")),
        ({"models": "a=b,a=c"}, f'{MODELS}"a" is set twice. Rename one.'),
        ({"models": "a=b@sha256:12"}, MODELS + NOT_A_DIGEST),
        ({"models": f"a=@sha256:{DIGEST}"}, MODELS + NOT_A_DIGEST),
        ({"models": "a=b,c=d", "model_aliases": "e=f"}, ALIASES + UNKNOWN),
        ({"models": "a=b,c=d", "model_aliases": "c"}, ALIASES + TAKEN),
        ({"model_aliases": "c,c"}, ALIASES + TAKEN),
    ],
)
def test_invalid_list_is_an_error_of_its_option(options: dict[str, str], message: str) -> None:
    environ = {f"ATTENDANT_{name.upper()}": value for name, value in options.items()}
    with pytest.raises(ConfigError) as raised:
        load_settings(environ=environ)
    assert str(raised.value) == message
