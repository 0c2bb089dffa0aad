"""Model names: every place that takes one accepts and rejects the same names."""

import shutil
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from model.__main__ import main
from model.artifact.console import EX_DATAERR, EX_USAGE
from model.artifact.files import Artifact, ArtifactError, write_manifest
from model.export.export import export
from model.source.hub import SourceError
from model.train.config import TrainError, load_config
from service.config import ConfigError, Settings, load_settings
from service.engine.repository import ModelRepository
from service.metrics import Metrics
from service.models_file import parse_models_file

GOOD = (
    "a", "1", "_a", "all-MiniLM-L6-v2", "BAAI/bge-small-en-v1.5", "nomic-embed-text:v1.5", "org/model@main", "a+b~c",
    "none/none", "x" * 128,
)  # fmt: skip
BAD = (
    "модель", "modèle", "a\nb", "a\n", "a\r\nset-cookie: b", "a b", "a\tb", "a\0b", "a\x7f", "a,b", "a=b", 'a"b',
    "a\\b", "a?b", "a#b", "a%2Fb", "/a", "a/", "a//b", ".", "..", "a/../b", ".a", "-a", "none", "x" * 129, "a\u2028b",
)  # fmt: skip


def serve_manifest_name(artifact: Path, folder: Path, name: str, served: str = "") -> None:
    root = folder / "artifact"
    shutil.copytree(artifact, root)
    write_manifest(root, Artifact.open(root).manifest.model_copy(update={"name": name}))
    options = Settings(models=f"{served}={root}") if served else Settings(model_dir=root)
    ModelRepository(options, Metrics(CollectorRegistry())).load_all()


def quote(text: str) -> str:
    """Return a string of TOML."""
    return '"' + "".join(f"\\U{ord(character):08x}" for character in text) + '"'


def list_model(name: str) -> None:
    parse_models_file(Path("models.toml"), f"[[models]]\nname = {quote(name)}\nsource = 'x'\n".encode())


def list_alias(name: str) -> None:
    entry = f"[[models]]\nname = 'other'\nsource = 'x'\naliases = [{quote(name)}]\n"
    parse_models_file(Path("models.toml"), entry.encode())


def set_models(name: str) -> None:
    load_settings(environ={"ATTENDANT_MODELS": f"{name}=x"})


def set_alias(name: str) -> None:
    load_settings(["--model-aliases", f"other,{name}"], {})


@pytest.fixture
def train(tmp_path: Path) -> Callable[[str], None]:
    def check(name: str) -> None:
        path = tmp_path / "train.toml"
        text = f"[model]\nname = {quote(name)}\n[data]\ntrain = ['t']\nvalidation = ['v']\n[run]\nsteps = 200\n"
        path.write_text(text)
        load_config(path)

    return check


@pytest.mark.parametrize("name", GOOD)
def test_good_name_is_accepted(train: Callable[[str], None], name: str) -> None:
    for check in (list_model, list_alias, set_models, set_alias, train):
        check(name)
    assert httpx.URL(f"http://localhost/v2/models/{name}").raw_path == f"/v2/models/{name}".encode()
    assert httpx.Headers({"x-attendant-model": name}).raw[0][1] == name.encode("ascii")


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_bad_name_is_rejected_wherever_it_enters(
    train: Callable[[str], None], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    checks = [list_model, list_alias, train]
    if not set(name) & set(",=") and name == name.strip():  # else the option has another name
        checks += [set_models, set_alias]
    for check in checks:
        with pytest.raises((ConfigError, TrainError), match="must be up to 128 ASCII letters") as raised:
            check(name)
        assert str(raised.value).isprintable()
    with pytest.raises(SystemExit) as ended:
        main(["export", "default", "-o", "x", f"--name={name}"])
    assert ended.value.code == EX_USAGE
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", ["модель", "a\nb", "a b"], ids=ascii)
def test_manifest_with_a_bad_name_needs_a_served_name(tiny_artifact: Path, tmp_path: Path, name: str) -> None:
    """Artifacts of older exporters have any name. As a header, it made each response an error."""
    message = r"manifest\.json: the name must be up to 128 ASCII letters.*Serve it under another name: --models NAME="
    with pytest.raises(ArtifactError, match=message) as raised:
        serve_manifest_name(tiny_artifact, tmp_path, name)
    assert "\n" not in str(raised.value)
    serve_manifest_name(tiny_artifact, tmp_path / "again", name, "good")


def test_export_rejects_the_name_of_a_directory(tmp_path: Path) -> None:
    source = tmp_path / "модель"
    source.mkdir()
    (source / "config.json").write_text("{}")
    with pytest.raises(SourceError, match=r"the name must be up to 128 ASCII letters.* Set --name"):
        export(str(source), tmp_path / "out", revision=None, name=None, progress=lambda step: None)
    assert SourceError.status == EX_DATAERR
