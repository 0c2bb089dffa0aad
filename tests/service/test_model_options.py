"""Lists of models and aliases in the options."""

from pathlib import Path

import pytest

from model.artifact.names import NAME_FORMAT
from service.config import ConfigError, Settings, load_settings
from service.model_options import ModelOption

DIGEST = "0123456789abcdef" * 4


def served(**options: str) -> tuple[ModelOption, ...]:
    return Settings(**options).served_models  # type: ignore[arg-type]


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
        ({"model_aliases": "e=f"}, ALIASES + UNKNOWN),
        ({"models": "a=b,c=d", "model_aliases": "c"}, ALIASES + TAKEN),
        ({"model_aliases": "c,c"}, ALIASES + TAKEN),
        ({"model_aliases": "=c"}, ALIASES + NOT_A_NAME.format("''")),
    ],
)
def test_invalid_list_is_an_error_of_its_option(options: dict[str, str], message: str) -> None:
    environ = {f"ATTENDANT_{name.upper()}": value for name, value in options.items()}
    with pytest.raises(ConfigError) as raised:
        load_settings(environ=environ)
    assert str(raised.value) == message
