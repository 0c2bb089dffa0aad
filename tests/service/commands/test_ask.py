"""`attendant ask`: the API's numbers, computed by an engine and by servers, fitted to the terminal width."""

import io
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from rich.console import Console

from service.commands import ask
from service.commands.ask import Analysis, show_map, show_neighbors, show_words
from tests.conftest import RunningServer
from tests.service.commands.running import run_command

TEXT = "He cashed a check at the bank."
OTHERS = ["money bank grows", "river bank flows", "He cashed a check at the bank."]
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, default_artifact: Path) -> Ask:
    """Run the command at 80 columns; return status, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("ATTENDANT_MODEL_DIR", str(default_artifact))

    return partial(run_command, capsys, "ask")


def attend(rest: httpx.Client, **options: Any) -> np.ndarray[Any, Any]:
    body = {"inputs": TEXT, "unit": "word", "special_tokens": "drop", "layers": [-1], **options}
    (result,) = rest.post("/v1/attend", json=body).raise_for_status().json()["results"]
    return 100 * np.array(result["maps"][0]["matrix"])


def map_numbers(out: str) -> list[list[int]]:
    rows = re.findall(r"^ *\d+ \S+ +(-?\d.*)$", out, re.MULTILINE)
    return [[int(value) for value in row.split()] for row in rows]


@pytest.mark.parametrize("source", ["engine", "rest", "grpc"])
def test_ask_shows_the_numbers_of_the_api(
    run_ask: Ask, server: RunningServer, rest: httpx.Client, source: str, tmp_path: Path
) -> None:
    urls = {"rest": server.rest, "grpc": f"grpc://{server.grpc}"}
    among = tmp_path / "texts.txt"
    among.write_text("\n".join(OTHERS[1:]))
    options = [] if source == "engine" else ["--server", urls[source]]
    status, out, err = run_ask(TEXT, OTHERS[0], "--among", among, "--top-k", 2, *options)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[:2] == ["Words (8 words, 11 tokens with special ones)", "He cash|ed a check at the bank ."]
    body = {"queries": TEXT, "documents": OTHERS}
    scores = rest.post("/v1/similarity", json=body).json()["scores"][0]
    assert lines[3] == "Nearest of 3 texts"
    shown = [re.split(r" {2,}", line.strip()) for line in lines[5:7]]
    assert [row[1:] for row in shown] == [["line 2", OTHERS[2]], ["text 1", OTHERS[0]]]
    np.testing.assert_allclose([float(row[0]) for row in shown], [scores[2], scores[0]], atol=4e-3)
    np.testing.assert_allclose(map_numbers(out), attend(rest, kind="projection"), atol=0.51)


def test_ask_shows_the_kind_and_layer_of_the_options(run_ask: Ask, rest: httpx.Client) -> None:
    """Norms are shown as shares of their row."""
    status, out, _ = run_ask(TEXT, "--kind", "norm", "--layer", 2)
    assert status == 0
    assert "Contributions (norm, layer 2)" in out
    matrix = attend(rest, kind="norm", layers=[2], head_reduce="sum")
    np.testing.assert_allclose(map_numbers(out), 100 * matrix / matrix.sum(1, keepdims=True), atol=0.51)
    assert "Nearest" not in out


def test_ask_limits_long_texts_to_the_width(run_ask: Ask, tmp_path: Path) -> None:
    """A text over the token limit is truncated, and the map shows only the first words."""
    status, out, _ = run_ask("extraordinarily-long " * 200, "b " * 100)
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "256 tokens with special ones, truncated to 256 tokens)" in out
    assert re.search(r"layer 6, first 1\d of 43 words\)", out)
    assert re.search(r"b b b .*…", out)


def test_ask_reads_a_limited_number_of_lines(run_ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "MAX_LINES", 2)
    among = tmp_path / "texts.txt"
    among.write_text("a\nb\nc\n")
    _, out, _ = run_ask(TEXT, "--among", among)
    assert "Nearest of 2 texts (only the first 2 lines of texts.txt)" in out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([""], 65, "TEXT: empty or blank. Send text."),
        (["a", "b", " "], 65, "text 2: empty or blank. Send text."),
        (["a\udcff"], 65, "TEXT: not UTF-8. Send text in UTF-8."),
        (["a", "\udcff"], 65, "text 1: not UTF-8. Send text in UTF-8."),
        (["a", "--among", "/none"], 65, "/none: cannot be read (No such file or directory). Check the path."),
        (["a", "--layer", "7"], 78, "--layer: out of range (7). Use 1 to 6, or -6 to -1 from the end."),
        (["a", "--layer", "x"], 2,
         '--layer: not a number ("x"). Use 1 for the first layer, or -1 for the last one. See: attendant ask --help'),
        (["a", "--server", "ftp://a"], 2,
         "--server: 'ftp://a' is not a URL of http, https, grpc or grpcs, such as grpc://127.0.0.1:8081"),
        (["a", "--api-key-file", "k"], 2,
         "--api-key-file: set without --server. Remove it. See: attendant ask --help"),
        (["a", "--ca-file", "c"], 2, "--ca-file: set without --server. Remove it. See: attendant ask --help"),
        (["a", "--server", "https://a", "--cert-file", "c"], 2,
         "--server: tls: a client certificate requires cert and key. Set both."),
        (["a", "--server", "http://a", "--ca-file", "c"], 2,
         "--server: tls: http:// is not encrypted. Use https:// or grpcs://, or remove tls."),
        (["a", "--server", "grpcs://a", "--ca-file", "/none"], 2,
         "--server: tls: /none: No such file or directory. Check the files."),
        ([], 2, "the following arguments are required: TEXT. See: attendant ask --help"),
    ],
)  # fmt: skip
def test_errors_are_one_line_with_a_remedy(run_ask: Ask, arguments: list[str], status: int, message: str) -> None:
    assert run_ask(*arguments) == (status, "", f"attendant ask: {message}\n")


def test_unreachable_server_is_an_error(run_ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.commands.sources.MAX_ATTEMPTS", 1)
    status, out, err = run_ask("a", "--server", "http://127.0.0.1:9")
    problem = "--server: cannot connect to http://127.0.0.1:9 (All connection attempts failed). Check the URL."
    assert (status, out, err) == (69, "", f"attendant ask: {problem}\n")


def test_missing_package_is_an_error(run_ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    remedy = "Install the extra \"data\": pip install -c constraints.txt -e '.[cpu,data]'."
    assert run_ask("a") == (78, "", f"attendant ask: rich is not installed. {remedy}\n")


def draw(**options: Any) -> str:
    """Return a map of two words as drawn on a terminal."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=40, highlight=False, **options)
    matrix = np.array([[0.9, -0.02], [0.04, 0.9]], np.float32)
    show_map(console, Analysis([["a"], ["b"]], 4, False, ["a", "b"], matrix, 1), "projection")
    return file.getvalue()


def test_map_has_colors_on_a_terminal() -> None:
    """The largest contribution from another word has the full color, and half of it is half as strong."""
    out = draw(color_system="truecolor", no_color=False)
    orange, blue = "48;2;230;120;20m", "48;2;148;182;238m"
    assert [cell in out for cell in (f"{orange}  90", f"{orange}   4", f"{blue}  -2")] == [True] * 3


def test_control_characters_do_not_reach_the_terminal() -> None:
    file = io.StringIO()
    console = Console(file=file, width=40)
    analysis = Analysis([["a\x1b[2J"], ["b\n"]], 4, False, ["a\x1b[2J", "b\n"], np.eye(2, dtype=np.float32), 1)
    show_words(console, analysis, 8)
    show_neighbors(console, [(0.5, "line 1", "x\x1b]0;y\x07\n[bold]z")], 1, "")
    show_map(console, analysis, "probs")
    assert "\x1b" not in file.getvalue()
    assert "\x07" not in file.getvalue()
    assert "[bold]z" in file.getvalue()


def test_ask_shows_the_rollout(run_ask: Ask, rest: httpx.Client) -> None:
    """Options may stand between texts."""
    status, out, err = run_ask(TEXT, "--rollout", OTHERS[0], "--kind", "projection", OTHERS[1])
    assert (status, err) == (0, "")
    assert "Nearest of 2 texts" in out
    assert "Contributions (projection, rollout of all layers)" in out
    expected = attend(rest, kind="projection", layers="all", layer_reduce="rollout")
    np.testing.assert_allclose(map_numbers(out), expected, atol=0.6)


def test_rollout_has_no_layer(run_ask: Ask) -> None:
    status, _, err = run_ask(TEXT, "--rollout", "--layer", 2)
    assert (status, err.count("\n")) == (2, 1)
    assert "--layer: not supported with --rollout, which combines all layers. Remove one of them" in err
