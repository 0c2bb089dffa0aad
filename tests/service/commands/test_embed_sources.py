"""`attendant embed IN -o OUT` with an engine and with servers: the API's numbers, and failing servers."""

import asyncio
import json
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.export.sample_texts import sample_sentences
from service.commands import sources as vector_sources
from service.commands.embed import partial_path, rejected_path
from service.engine.model_loader import LoadedModel
from tests.certificates import Identity
from tests.conftest import ROOT, RunningServer, server_environment, start_server
from tests.service.commands.embed_command import RunEmbed, read_vectors, write_rows
from tests.service.conftest import encode, open_harness
from tests.serving import ServiceThread

SENTENCES = [*sample_sentences(150), "word " * 300]
TOLERANCE = 4e-3
"""Maximum bfloat16 difference due to batch composition, for vectors of length 1."""


@pytest.fixture(scope="module")
def expected(model: LoadedModel) -> np.ndarray[Any, Any]:
    """Embeddings computed in process, (N, D)."""

    async def encode_all() -> list[Any]:
        async with open_harness(model) as harness:
            response = await encode(harness.engine, *SENTENCES, truncation="right")
            return [result.pooled for result in response.results if result.pooled is not None]

    return np.array(asyncio.run(encode_all()))


@pytest.mark.parametrize("source", ["engine", "rest", "grpc"])
def test_embed_writes_the_vectors_of_the_engine(
    tmp_path: Path, run_embed: RunEmbed, server: RunningServer, default_artifact: Path, expected: Any, *, source: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Sources have the same limits and reject the same rows for the same reasons."""
    monkeypatch.setenv("ATTENDANT_MODEL_DIR", str(default_artifact))
    urls = {"rest": server.rest, "grpc": f"grpc://{server.grpc}"}
    options = [] if source == "engine" else ["--server", urls[source]]
    rows = [*SENTENCES, "", "\u200b", "x" * 16385]
    path = write_rows(tmp_path / "in.jsonl", [{"text": text} for text in rows])
    status, err = run_embed(path, "-o", tmp_path / "out.parquet", *options)
    assert status == 1, err
    numbers, _, vectors = read_vectors(tmp_path / "out.parquet")
    assert numbers == list(range(1, len(SENTENCES) + 1))
    np.testing.assert_allclose(vectors, expected, atol=TOLERANCE)
    lines = [json.loads(line) for line in rejected_path(tmp_path / "out.parquet").read_text().splitlines()]
    first = len(SENTENCES) + 1
    assert lines == [
        {"row": first, "error": "text: empty or blank. Send text."},
        {"row": first + 1, "error": "text: no content after tokenization. Send text."},
        {
            "row": first + 2,
            "error": "text: too many characters (16385, limit 16384). Shorten it, or split it with --chunk.",
        },
    ]
    assert "; truncated 1 to 256 tokens, the limit of the model; rejected 3 of 154 rows" in err


@pytest.mark.parametrize("source", ["engine", "rest"])
def test_options_of_the_model_are_checked_first(
    tmp_path: Path, run_embed: RunEmbed, server: RunningServer, default_artifact: Path, source: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("ATTENDANT_MODEL_DIR", str(default_artifact))
    options = [] if source == "engine" else ["--server", server.rest]
    path, out = write_rows(tmp_path / "in.txt", [{"text": "a"}]), tmp_path / "out.npy"
    status, err = run_embed(path, "-o", out, "--dimensions", 500, *options)
    assert (status, err.count("\n")) == (78, 1)
    assert err.startswith("attendant embed: dimensions: out of range (500). ")
    status, err = run_embed(path, "-o", out, "--prompt-name", "query", *options)
    assert (status, err.count("\n")) == (78, 1)
    assert err.startswith("attendant embed: prompt_name: not found")
    assert not partial_path(out).exists()


def test_float16_normalized_dimensions(
    tmp_path: Path, run_embed: RunEmbed, server: RunningServer, expected: Any
) -> None:
    path, out = write_rows(tmp_path / "in.txt", [{"text": text} for text in SENTENCES]), tmp_path / "out.npy"
    options = ("--dtype", "float16", "--dimensions", 64, "--normalize", "--server", f"grpc://{server.grpc}")
    assert run_embed(path, "-o", out, *options)[0] == 0
    vectors = np.load(out)
    assert vectors.dtype == np.float16
    wanted = expected[:, :64] / np.linalg.norm(expected[:, :64], axis=1, keepdims=True)
    np.testing.assert_allclose(vectors.astype(np.float32), wanted, atol=3 * TOLERANCE)


@pytest.mark.slow
def test_run_continues_on_another_server_when_one_goes_away(
    tmp_path: Path, run_embed: RunEmbed, default_artifact: Path, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client retries, the error is one line, and the rows on disk are kept."""
    monkeypatch.setattr(vector_sources, "MAX_ATTEMPTS", 2)
    monkeypatch.setattr("service.commands.embed.CHECKPOINT_ROWS", 128)
    texts = sample_sentences(1000)
    path, out = write_rows(tmp_path / "in.txt", [{"text": text} for text in texts]), tmp_path / "out.jsonl"
    server = start_server(model_dir=default_artifact)

    def kill() -> None:
        state = partial_path(out) / "state.json"
        while not (state.exists() and json.loads(state.read_bytes())["counts"]["rows"]):
            time.sleep(0.01)
        server.process.send_signal(signal.SIGKILL)
        server.process.communicate()

    killer = threading.Thread(target=kill)
    killer.start()
    status, err = run_embed(path, "-o", out, "--server", server.rest)
    killer.join()
    *progress, _ = err.splitlines()  # a run of over 10 s also prints its progress
    assert (status, all(line.endswith(" s left") for line in progress)) == (69, True), err
    assert err.endswith(" Repeat the command to continue.\n")
    assert not out.exists()
    rows = json.loads((partial_path(out) / "state.json").read_bytes())["counts"]["rows"]
    assert 0 < rows < 1000
    with ServiceThread(model, model_dir=default_artifact) as other:
        status, err = run_embed(path, "-o", out, "--server", f"grpc://{other.grpc}")
    assert (status, read_vectors(out)[0]) == (0, list(range(1, 1001))), err


async def test_model_change_during_the_run_is_an_error(model: LoadedModel) -> None:
    """The file would contain vectors of two models, and name one."""
    with ServiceThread(model) as server:
        options = vector_sources.VectorOptions()
        async with vector_sources.open_server_source(server.rest, None, options, {}) as source:
            source.info = replace(source.info, digest="sha256:0")
            with pytest.raises(vector_sources.SourceError, match=r"the model changed during the run \(sha256:0 to sha"):
                await source.encode(["a"])


@pytest.mark.parametrize("prefix", ["other", "v2"])
def test_url_with_a_path_is_an_error(tmp_path: Path, run_embed: RunEmbed, server: RunningServer, prefix: str) -> None:
    path, url = write_rows(tmp_path / "in.txt", [{"text": "a"}]), f"{server.rest}/{prefix}"
    problem = f"--server: no Attendant server at {url}. Check the port, and remove the path."
    assert run_embed(path, "-o", tmp_path / "out.npy", "--server", url) == (78, f"attendant embed: {problem}\n")


@pytest.mark.parametrize(
    ("url", "reason"),
    [("http://127.0.0.1:9", "All connection attempts failed"), ("grpc://127.0.0.1:9", "connections to all .*refused")],
)
def test_unreachable_server_is_an_error(
    tmp_path: Path, run_embed: RunEmbed, url: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_sources, "MAX_ATTEMPTS", 1)
    path = write_rows(tmp_path / "in.txt", [{"text": "a"}])
    status, err = run_embed(path, "-o", tmp_path / "out.npy", "--server", url)
    assert status == 69
    pattern = rf"attendant embed: --server: cannot connect to {url} \({reason}\)\. Check the URL\.\n"
    assert re.fullmatch(pattern, err), err


def test_untrusted_certificate_names_the_option(
    tmp_path: Path, run_embed: RunEmbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_sources, "MAX_ATTEMPTS", 1)
    path = write_rows(tmp_path / "in.txt", [{"text": "a"}])
    identity = Identity.make_ca("CA").issue("server")
    (tmp_path / "server.pem").write_bytes(identity.pem + identity.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"https://127.0.0.1:{server.server_port}"
        outcome = run_embed(path, "-o", tmp_path / "out.npy", "--server", url)
        server.shutdown()
    assert outcome == (78, f"attendant embed: --server: certificate of {url} not trusted. Set --ca-file.\n")


def stub_command(path: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "tests.service.commands.embed_stub", "embed", str(path), "-o", str(out)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "target"), [("in.jsonl", "out.jsonl"), ("in.csv", "out.npy"), ("in.parquet", "out.parquet")]
)
def test_memory_does_not_grow_with_the_file(tmp_path: Path, source: str, target: str) -> None:
    """Peak memory with 20,000 and 400,000 rows (38 MiB) may differ by at most 30 MiB."""
    peaks = []
    for count in (20_000, 400_000):
        path = write_rows(tmp_path / source, [{"text": f"{number} " + "x" * 90} for number in range(count)])
        code = (
            "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        )
        command = [sys.executable, "-c", code, *stub_command(path, tmp_path / f"{count}{target}")]
        result = subprocess.run(command, cwd=ROOT, env=server_environment(), capture_output=True, text=True, check=True)
        peaks.append(int(result.stdout) / 1024)
    assert peaks[1] - peaks[0] < 30, peaks
