"""attendant embed and attendant ask: output, lines, errors, exit status, and the choice of a model."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import BytesIO, TextIOWrapper
from pathlib import Path

import httpx
import numpy as np
import pytest

from service.__main__ import main
from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.conftest import HANG_TIMEOUT_S, ROOT, server_environment
from tests.service.commands.embed_command import RunEmbed, write_rows
from tests.serving import ServiceThread

Embed = Callable[..., tuple[int, list[str], str]]
TEXTS = ["money bank grows", "river bank flows", "a line with \u2028 in it"]


@pytest.fixture
def embed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, default_artifact: Path) -> Embed:
    """Run the command in this process; return status, lines of stdout, and stderr."""
    monkeypatch.setenv("ATTENDANT_MODEL_DIR", str(default_artifact))

    def run(*texts: str, stdin: bytes = b"") -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(stdin)))
        status = main(["embed", *texts])
        out, err = capsys.readouterr()
        return status, out.splitlines(), err

    return run


def test_embed_prints_the_embeddings_of_the_server(embed: Embed, rest: httpx.Client) -> None:
    """The output has one JSON line per argument."""
    status, lines, err = embed(*TEXTS)
    expected = rest.post("/v1/encode", json={"inputs": TEXTS}).json()["results"]
    vectors = [json.loads(line) for line in lines]
    np.testing.assert_allclose(vectors, [item["pooled"] for item in expected], atol=1e-4)
    assert (status, err) == (0, "")


def test_embed_reads_lines_from_standard_input(embed: Embed) -> None:
    """There are enough lines for several batches."""
    status, lines, _ = embed(stdin=b"a word\n" * 70)
    assert (status, len(lines)) == (0, 70)


def test_embed_error_names_the_line(embed: Embed) -> None:
    """Earlier batches have already been printed."""
    status, lines, err = embed(stdin=b"a word\n" * 40 + b"\nlast\n")
    assert (status, len(lines)) == (65, 32)
    assert err == "attendant embed: line 41: empty or blank. Send text.\n"


def test_embed_error_names_the_argument_that_is_not_utf8(embed: Embed) -> None:
    error = "attendant embed: text 2: not UTF-8. Send text in UTF-8.\n"
    assert embed("a", "b\udcff") == (65, [], error)


def test_embed_truncates_long_lines_with_a_warning(embed: Embed) -> None:
    status, lines, err = embed("word " * 300, "short")
    assert (status, len(lines)) == (0, 2)
    assert err == "attendant embed: truncated 1 text to 256 tokens, the limit of the model\n"


@pytest.mark.slow
def test_embed_exits_without_error_when_the_pipe_closes(default_artifact: Path) -> None:
    pipeline = f"yes hello | head -2000 | {sys.executable} -m service embed | head -1"
    result = subprocess.run(
        ["bash", "-c", pipeline], cwd=ROOT, env=server_environment(model_dir=default_artifact),
        capture_output=True, text=True, timeout=HANG_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (len(result.stdout.splitlines()), result.stderr) == (1, "")


def test_embed_is_not_limited_by_the_options_of_requests(embed: Embed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Request limits do not apply offline; they would reject a slow model's batches."""
    for name in ("MAX_QUEUE_MS", "MAX_QUEUE_TOKENS", "MAX_TIMEOUT_MS", "MAX_INPUTS"):
        monkeypatch.setenv(f"ATTENDANT_{name}", "1")
    status, lines, err = embed(stdin=b"a word\n" * 70)
    assert (status, len(lines), err) == (0, 70, "")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["t.jsonl"], "file t.jsonl"),
        (["T.CSV", "a text"], "file T.CSV"),
        (["t.jsonl", "--field", "text"], "option --field"),
        (["a text", "--server=http://a"], "option --server"),
        (["../nofile"], "file ../nofile"),
        (["/nofile"], "file /nofile"),
        (["README"], "file README"),
    ],
)
def test_forgotten_output_is_wrong_usage(
    tmp_path: Path, run_embed: RunEmbed, arguments: list[str], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README").touch()
    remedy = "Set -o OUT" + (": texts allow no options" if "option" in shown else ", or write texts to standard input")
    remedy += ". See: attendant embed --help"
    assert run_embed(*arguments) == (2, f"attendant embed: --output: missing ({shown}). {remedy}\n")


def test_texts_that_resemble_options_or_files_are_embedded(embed: Embed) -> None:
    texts = ["- an item", "see data.csv", "and/or", "-5 degrees", "x" * 5000]
    status, lines, err = embed(*texts)
    assert (status, len(lines)) == (0, len(texts)), err


# `--model` of `attendant embed` and `attendant ask`: selects an option's or a server's model by name or alias.

TEXT = "The river bank flows past the old mill."
SOURCES = ("engine", "file", "rest", "grpc")


@pytest.fixture(scope="module")
def options(default_artifact: Path, exported: Path) -> dict[str, str]:
    """Options for two models, the second one with an alias."""
    return {"models": f"large={default_artifact},org/tiny={exported}", "model_aliases": "t=org/tiny"}


@pytest.fixture(scope="module")
def two_models(options: dict[str, str]) -> Iterator[ServiceThread]:
    settings = Settings(**options)
    models = [LoadedModel.load(settings, option) for option in settings.served_models]
    with ServiceThread(*models, **options) as running:
        yield running


@pytest.fixture(params=SOURCES)
def source(
    request: pytest.FixtureRequest, two_models: ServiceThread, options: dict[str, str], monkeypatch: pytest.MonkeyPatch,
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
    return ["--server", two_models.rest if request.param == "rest" else f"grpc://{two_models.grpc}"]


@pytest.mark.parametrize(
    "names", [(None, "large"), ("large", "large"), ("org/tiny", "org/tiny"), ("t", "org/tiny")], ids=str
)
def test_model_is_selected_by_name_or_alias(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], two_models: ServiceThread, source: list[str],
    names: tuple[str | None, str],
) -> None:  # fmt: skip
    model, served = names
    selected = source if model is None else ["--model", model, *source]
    rows, out = write_rows(tmp_path / "in.txt", [{"text": TEXT}]), tmp_path / "out.npy"
    assert main(["embed", str(rows), "-o", str(out), *selected]) == 0
    with httpx.Client(base_url=two_models.rest) as rest:
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
