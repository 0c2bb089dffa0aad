"""`--model` of `attendant embed` and `attendant ask`: selects an option's or a server's model by name or alias."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from service.__main__ import main
from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.service.commands.embed_command import RunEmbed, write_rows
from tests.serving import ServiceThread

TEXT = "The river bank flows past the old mill."
SOURCES = ("engine", "file", "rest", "grpc")


@pytest.fixture(scope="module")
def options(default_artifact: Path, exported: Path) -> dict[str, str]:
    """Options for two models, the second one with an alias."""
    return {"models": f"large={default_artifact},org/tiny={exported}", "model_aliases": "t=org/tiny"}


@pytest.fixture(scope="module")
def server(options: dict[str, str]) -> Iterator[ServiceThread]:
    settings = Settings(**options)
    models = [LoadedModel.load(settings, option) for option in settings.served_models]
    with ServiceThread(*models, **options) as running:
        yield running


@pytest.fixture(params=SOURCES)
def source(
    request: pytest.FixtureRequest, server: ServiceThread, options: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> list[str]:  # fmt: skip
    """Command options that select where the models run."""
    if request.param == "file":
        models = [item.split("=") for item in options["models"].split(",")]
        large, tiny = (f"[[models]]\nname = '{name}'\nsource = '{artifact}'\n" for name, artifact in models)
        (tmp_path / "models.toml").write_text(f"{large}{tiny}aliases = ['t']")
        monkeypatch.setenv("ATTENDANT_MODELS_FILE", str(tmp_path / "models.toml"))
        return []
    if request.param == "engine":
        for name, value in options.items():
            monkeypatch.setenv(f"ATTENDANT_{name.upper()}", value)
        return []
    return ["--server", server.rest if request.param == "rest" else f"grpc://{server.grpc}"]


@pytest.mark.parametrize(
    "names", [(None, "large"), ("large", "large"), ("org/tiny", "org/tiny"), ("t", "org/tiny")], ids=str
)
def test_model_is_selected_by_name_or_alias(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], server: ServiceThread, source: list[str],
    names: tuple[str | None, str],
) -> None:  # fmt: skip
    model, served = names
    selected = source if model is None else ["--model", model, *source]
    rows, out = write_rows(tmp_path / "in.txt", [{"text": TEXT}]), tmp_path / "out.npy"
    assert main(["embed", str(rows), "-o", str(out), *selected]) == 0
    with httpx.Client(base_url=server.rest) as rest:
        body = {"inputs": TEXT, "model": served}
        (result,) = rest.post("/v1/encode", json=body).raise_for_status().json()["results"]
    expected = np.array(result["pooled"])
    np.testing.assert_allclose(np.load(out)[0], expected, atol=4e-3 * float(np.linalg.norm(expected)))
    assert main(["ask", TEXT, *selected]) == 0
    layers = {"large": 6, "org/tiny": 2}[served]
    assert re.search(rf"layer {layers}\)", capsys.readouterr().out)


def test_unknown_model_is_an_error(
    tmp_path: Path, run_embed: RunEmbed, capsys: pytest.CaptureFixture[str], source: list[str]
) -> None:
    rows, out = write_rows(tmp_path / "in.txt", [{"text": TEXT}]), tmp_path / "out.npy"
    status, err = run_embed(rows, "-o", out, "--model", "huge", *source)
    pattern = r'attendant \w+: .*not found.*"large"(,| and) "org/tiny".*\n'
    assert status == 78
    assert re.fullmatch(pattern, err)
    assert main(["ask", TEXT, "--model", "huge", *source]) == 78
    assert re.fullmatch(pattern, capsys.readouterr().err)
