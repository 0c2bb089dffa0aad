"""The model on the command line of `attendant serve`."""

from pathlib import Path

import pytest

from service.config import ConfigError, load_serve_settings

SOURCE = "owner/tiny@v1.0"


@pytest.fixture(autouse=True)
def empty_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run the test in an empty directory, without a .env file."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("arguments", [[SOURCE, "--threads", "3"], ["--threads", "3", SOURCE], ["--threads=3", SOURCE]])
def test_source_comes_before_or_after_options(arguments: list[str]) -> None:
    settings, source = load_serve_settings(arguments, {})
    assert (settings.threads, source) == (3, SOURCE)


def test_source_is_optional() -> None:
    assert load_serve_settings(["--no-docs"], {})[1] is None


def test_source_replaces_models_of_the_environment() -> None:
    environment = {"ATTENDANT_MODEL_DIR": "/srv/a", "ATTENDANT_MODELS": "b=/srv/b", "ATTENDANT_MODEL_ALIASES": "c"}
    settings, _ = load_serve_settings([SOURCE], environment)
    assert (settings.models, settings.model_fields_set) == ("", {"model_aliases"})


def test_alias_of_a_replaced_model_is_an_error() -> None:
    environment = {"ATTENDANT_MODELS": "b=/srv/b", "ATTENDANT_MODEL_ALIASES": "c=b"}
    with pytest.raises(ConfigError, match=r'^ATTENDANT_MODEL_ALIASES: "b" in "c=b" is not a name in ATTENDANT_MODELS'):
        load_serve_settings([SOURCE], environment)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([SOURCE, "--model-dir", "a"], "SOURCE and --model-dir both select a model: remove one"),
        (["--models=b=a", SOURCE], "SOURCE and --models both select a model: remove one"),
        ([SOURCE, "other"], "too many arguments (1 more than expected)"),
        ([""], "SOURCE is empty: name a model"),
    ],
)
def test_conflicting_arguments_are_rejected(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        load_serve_settings(arguments, {})
    assert capsys.readouterr().err == f"attendant serve: {message}. See: attendant serve --help\n"
