"""`attendant embed --ray` writes the same output as the plain command, even if the local cluster loses a node."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from model.export.sample_texts import sample_sentences
from service.commands import embed_ray as ray_embedder  # imports Ray
from service.commands.arguments import CommandError
from service.commands.embed import partial_path, rejected_path
from service.commands.sources import VectorOptions
from service.config import Settings
from tests.conftest import ROOT, server_environment
from tests.service.commands.embed_command import LONG, TEXTS, RunEmbed, read_vectors, write_rows
from tests.service.commands.embed_stub import EMPTY, INFO, MAX_CHARACTERS, open_stub, stub_vector

RUN_TIMEOUT_S = 180
PYTHONPATH = os.pathsep.join((str(ROOT), str(ROOT / "client")))
STUB = "tests.service.commands.embed_stub"
TOLERANCE = 1e-5
"""Maximum float32 difference due to batch composition, for vectors of length 1."""


@pytest.fixture(scope="module", autouse=True)
def ray_directory() -> Iterator[None]:
    """Keep Ray's sessions until the last test, in a path short enough for its Unix sockets."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", directory)
        yield


@contextmanager
def cluster(cpus: list[int]) -> Iterator[Any]:
    """Start a head without CPUs, plus nodes with these numbers of CPUs, in another directory."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PYTHONPATH)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.chdir("/")
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        try:
            for count in cpus:
                started.add_node(num_cpus=count)
            yield started
        finally:
            started.shutdown()


def start(
    path: Path, out: Path, *options: str, module: str = "service", address: str = "", **settings: Any
) -> subprocess.Popen[str]:
    """Start the command in a separate process, because Ray changes signal handlers and logging."""
    cluster_address = {"RAY_ADDRESS": address} if address else {}
    environment = server_environment(**settings) | {"PYTHONPATH": PYTHONPATH} | cluster_address
    return subprocess.Popen(
        [sys.executable, "-m", module, "embed", str(path), "-o", str(out), *options],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for the command; return its status and stderr."""
    try:
        out, err = process.communicate(timeout=RUN_TIMEOUT_S)
    finally:
        process.kill()
    assert out == ""
    return process.returncode, err


def without_rate(message: str) -> str:
    finished = [line for line in message.splitlines() if not line.endswith(" left")]  # progress depends on timing
    return re.sub(r"[0-9,]+ rows/s", "rows/s", "\n".join(finished))


@pytest.mark.parametrize(
    ("cpus", "count", "threads", "expected"),
    [
        ([2], None, 0, (1, 2, 2)),
        ([2], 2, 0, (2, 1, 1)),
        ([0, 8, 8], None, 0, (2, 8, 4)),
        ([8, 4], None, 0, (3, 4, 1.3333)),
        ([8, 8], 3, 0, (3, 4, 2.6666)),
        ([8, 8], None, 2, (8, 2, 1)),
        ([8, 8], 5, 2, (5, 2, 1.6)),
    ],
)
def test_cpus_are_divided_among_workers(
    cpus: list[int], count: int | None, threads: int, expected: tuple[int, int, float]
) -> None:
    """All workers must fit on the smallest node, where they restart if the other nodes are lost."""
    assert ray_embedder.divide_cpus(cpus, count, threads) == ray_embedder.Workers(*expected)


@pytest.mark.parametrize(("cpus", "count", "threads"), [([2], 3, 0), ([2, 2], 3, 2), ([1], None, 2), ([0], None, 0)])
def test_workers_that_do_not_fit_are_an_error(cpus: list[int], count: int | None, threads: int) -> None:
    with pytest.raises(CommandError, match=r"--ray-workers: too many \(.*, limit \d\)\. Reduce it"):
        ray_embedder.divide_cpus(cpus, count, threads)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ray", "--server", "grpc://127.0.0.1:1"], "--server: not supported with --ray. Remove one of them"),
        (["--ray-workers", "2"], "--ray-workers: set without --ray. Remove it"),
    ],
)
def test_options_that_contradict_each_other_are_wrong_usage(
    tmp_path: Path, run_embed: RunEmbed, options: list[str], message: str
) -> None:
    path = write_rows(tmp_path / "in.txt", [{"text": "a"}])
    expected = f"attendant embed: {message}. See: attendant embed --help\n"
    assert run_embed(path, "-o", tmp_path / "out.npy", *options) == (2, expected)


def test_ray_client_address_is_rejected(tmp_path: Path, run_embed: RunEmbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:10001")
    path = write_rows(tmp_path / "in.txt", [{"text": "a"}])
    problem = "RAY_ADDRESS: Ray Client is not supported (ray://). Run the command on a node of the cluster."
    assert run_embed(path, "-o", tmp_path / "out.npy", "--ray") == (78, f"attendant embed: {problem}\n")


def test_unreachable_cluster_is_an_error(tmp_path: Path, run_embed: RunEmbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    path = write_rows(tmp_path / "in.txt", [{"text": "a"}])
    problem = "RAY_ADDRESS: cannot connect to 127.0.0.1:1 ([Errno 111] Connection refused). Check the address."
    assert run_embed(path, "-o", tmp_path / "out.npy", "--ray") == (69, f"attendant embed: {problem}\n")


def test_missing_package_is_an_error(tmp_path: Path, run_embed: RunEmbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "service.commands.embed_ray", None)
    path = write_rows(tmp_path / "in.txt", [{"text": "a"}])
    problem = "Install the extra \"ray\": pip install -c constraints.txt -e '.[cpu,ray]'."
    expected = f"attendant embed: --ray: Ray is not installed. {problem}\n"
    assert run_embed(path, "-o", tmp_path / "out.npy", "--ray") == (78, expected)


async def test_worker_encodes_a_block_in_batches() -> None:
    """A text that is rejected must not affect the others."""
    texts = [EMPTY if index == 300 else f"text {index}" for index in range(600)]
    encoded = await ray_embedder.EncodeWorker(open_stub, Settings(), VectorOptions(), INFO).encode(texts)
    assert [item.error for item in encoded if item.error] == ["no content after tokenization. Send text."]
    for text, item in zip(texts, encoded, strict=True):
        if item.vector is not None:
            np.testing.assert_array_equal(item.vector, stub_vector(text))
    assert encoded[300].vector is None


async def test_worker_with_another_model_is_an_error() -> None:
    """Nodes with different artifacts must not mix their vectors."""
    other: Any = SimpleNamespace(**vars(INFO) | {"digest": "sha256:1"})
    worker = ray_embedder.EncodeWorker(open_stub, Settings(), VectorOptions(), other)
    for _ in range(2):
        with pytest.raises(CommandError, match=r"another model .*Install one artifact on all nodes") as raised:
            await worker.encode(["a"])
        assert pickle.loads(pickle.dumps(raised.value)).status == 78


@pytest.mark.slow
def test_ray_writes_the_files_of_the_plain_command(tmp_path: Path) -> None:
    """Files, reports and messages must be equal in every format, including in a second run with an interruption."""
    texts = [*TEXTS, LONG, "", EMPTY, "x" * (MAX_CHARACTERS + 1), *(f"text {number}" for number in range(3000))]
    rows = [{"id": number, "text": text} for number, text in enumerate(texts)]
    with cluster([1, 1]) as ray_cluster:
        for name in ("out.parquet", "out.npy", "out.jsonl"):
            ids = [] if name == "out.npy" else ["--id-field", "id"]
            path = write_rows(tmp_path / "in.jsonl", rows)
            plain, out = tmp_path / "plain" / name, tmp_path / "ray" / name
            for target in (plain, out):
                target.parent.mkdir(exist_ok=True)
            expected = finish(start(path, plain, *ids, module=STUB))
            actual = finish(start(path, out, "--ray", *ids, module=STUB, address=ray_cluster.address))
            assert actual[0] == expected[0] == 1, actual[1]
            assert without_rate(actual[1]) == without_rate(expected[1]).replace(str(plain), str(out))
            assert out.read_bytes() == plain.read_bytes()
            assert rejected_path(out).read_bytes() == rejected_path(plain).read_bytes()


@pytest.mark.slow
def test_run_survives_the_kill_of_a_node(tmp_path: Path, default_artifact: Path) -> None:
    """Every row must be in the output once, in order, although a node with one of two workers is killed midway."""
    sentences = sample_sentences(4800)
    written = write_rows(tmp_path / "in.jsonl", [{"text": text} for text in [*sentences[:2400], "", *sentences[2400:]]])
    path = Path(os.path.relpath(written, ROOT))
    plain, out = tmp_path / "plain.parquet", tmp_path / "ray.parquet"
    settings: dict[str, Any] = {"model_dir": default_artifact, "precision": "float32"}
    with cluster([1, 1]) as ray_cluster:
        process = start(path, out, "--ray", address=ray_cluster.address, **settings)
        state = partial_path(out) / "state.json"
        while not (state.exists() and json.loads(state.read_bytes())["counts"]["rows"]):
            assert process.poll() is None, finish(process)
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)  # or a fast machine could finish while the node ends
        ray_cluster.remove_node(min(ray_cluster.worker_nodes, key=str), allow_graceful=False)
        assert not out.exists()
        process.send_signal(signal.SIGCONT)
        status, err = finish(process)
    assert status == 1, err
    assert finish(start(path, plain, **settings))[0] == 1
    numbers, _, vectors = read_vectors(out)
    expected_numbers, _, expected = read_vectors(plain)
    assert numbers == expected_numbers == [number for number in range(1, 4802) if number != 2401]
    np.testing.assert_allclose(vectors, expected, atol=TOLERANCE)
    assert rejected_path(out).read_bytes() == rejected_path(plain).read_bytes()


@pytest.mark.slow
def test_worker_errors_match_the_plain_command(tmp_path: Path, default_artifact: Path) -> None:
    """Options and artifacts are checked before the output is created."""
    path, out = write_rows(tmp_path / "in.txt", [{"text": "a"}]), tmp_path / "out.npy"
    with cluster([1]) as ray_cluster:
        cases: list[tuple[list[str], dict[str, Any]]] = [
            (["--dimensions", "500"], {"model_dir": default_artifact}),
            (["--prompt-name", "query"], {"model_dir": default_artifact}),
            ([], {"model_dir": tmp_path / "none"}),
        ]
        for options, settings in cases:
            expected = finish(start(path, out, *options, **settings))
            actual = finish(start(path, out, "--ray", *options, address=ray_cluster.address, **settings))
            assert actual == expected
            assert expected[0] == 78
    assert not partial_path(out).exists()


@pytest.mark.slow
def test_interrupted_run_is_continued_by_the_plain_command(tmp_path: Path) -> None:
    """After Ctrl-C, the cluster started by the command must stop with it.

    Two workers with four requests in flight take at least 1.2 s, and reach the first checkpoint in a hundredth of that.
    """
    rows = [{"text": f"text {number}"} for number in range(100_000)]
    path, out, plain = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.npy", tmp_path / "plain.npy"
    process = start(path, out, "--ray", module=STUB)
    state = partial_path(out) / "state.json"
    while not (state.exists() and json.loads(state.read_bytes())["counts"]["rows"]):
        assert process.poll() is None, finish(process)
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    status, err = finish(process)
    assert (status, err.splitlines()[-1]) == (130, "attendant embed: interrupted. Repeat the command to continue.")
    for target in (out, plain):
        assert finish(start(path, target, module=STUB))[0] == 0
    assert out.read_bytes() == plain.read_bytes()
