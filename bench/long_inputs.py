"""Long inputs at real sizes, with random weights (C18): ModernBERT-base and Qwen3-Embedding-0.6B.

Each length is measured in alternation: the server, the same graph without a server in the same precision, and
sentence-transformers with PyTorch in float32 and in bfloat16.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from bench.closed_loop import Reading
from bench.limit import Backend, onnxruntime_backend, openvino_backend
from bench.machine import Machine, load_average
from bench.project import Model, encode_body, read_sentences
from bench.random_models import export_silently, save, seconds, served
from bench.startup import resident_mib
from service.engine.backends.cpu import detect_cpu
from tests.conftest import RunningServer

CONNECTIONS = 4
ROUNDS = 3
ROUND_S = 8.0
LONGEST = 8192
SHORT = "how do I open a bank account by the river"


@dataclass(frozen=True)
class LongModel:
    """A model of a real size, and the lengths to measure."""

    config: transformers.PretrainedConfig
    model_class: type[transformers.PreTrainedModel]
    pooling: str
    lengths: tuple[int, ...]


MODELS = {
    "modernbert": LongModel(
        transformers.ModernBertConfig(cls_token_id=101, sep_token_id=102, pad_token_id=0, eos_token_id=102),
        transformers.ModernBertModel, "mean", (512, 2048, LONGEST),
    ),
    "qwen3": LongModel(
        transformers.Qwen3Config(
            vocab_size=151_669, hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
            head_dim=128, intermediate_size=3072, max_position_embeddings=32_768,
        ),
        transformers.Qwen3Model, "lasttoken", (512, 2048),
    ),
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Measure the selected models; return 0 if all targets are met."""
    parser = argparse.ArgumentParser(prog="python -m bench.long_inputs", description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    machine = Machine.read()
    print(f"{machine.describe()}, {load_average()}")
    met = []
    with tempfile.TemporaryDirectory() as folder:
        for name in parser.parse_args(arguments).models:
            source, artifact = Path(folder, name), Path(folder, f"{name}-artifact")
            prepare(MODELS[name], source)
            export_silently(source, artifact)
            met.append(measure(name, MODELS[name], source, artifact, machine.cores))
    print(load_average())
    return 0 if all(met) else 1


def prepare(model: LongModel, source: Path) -> None:
    """Write a model with random weights and its pooling as sentence-transformers does."""
    torch.manual_seed(0)
    save(model.model_class(model.config), source)
    encoder = Transformer(str(source), max_seq_length=max(model.lengths))
    pooling = Pooling(encoder.get_embedding_dimension(), model.pooling)
    SentenceTransformer(modules=[encoder, pooling]).save(str(source))


def measure(name: str, model: LongModel, source: Path, artifact: Path, cores: int) -> bool:
    """Compare the server with a bare run and sentence-transformers; return whether it meets the targets."""
    met = []
    started = time.perf_counter()
    with served(artifact, max_timeout_ms=600_000) as server, httpx.Client(base_url=server.rest, timeout=300) as client:
        ready_s = time.perf_counter() - started
        precision = client.get("/v1/model").json()["precision"]
        print(f"{name}: {precision}, start to ready {ready_s:.1f} s (6 for a base-size model)")
        met.append(name != "modernbert" or ready_s <= 6)
        bare = bare_backends(artifact, cores)
        peers = {
            f"torch {dtype}": SentenceTransformer(str(source), device="cpu", model_kwargs={"torch_dtype": dtype})
            for dtype in ("float32", "bfloat16")
        }
        for length in model.lengths:
            text = make_text(Model(artifact), length)
            if length == LONGEST:
                met.append(measure_memory(server, client, text))
                met.append(measure_beside(server, text))
            else:
                met.append(measure_rates(name, server, text, length, bare, peers))
    return all(met)


def bare_backends(artifact: Path, cores: int) -> list[Backend]:
    """Return the ways to run the graph on all cores, in the precision that the server selects."""
    open_backend = openvino_backend if detect_cpu().fast_bfloat16 else onnxruntime_backend
    return [open_backend(Model(artifact), cores, streams) for streams in dict.fromkeys((1, cores))]


def measure_rates(
    name: str, server: RunningServer, text: str, length: int, bare: list[Backend], peers: dict[str, SentenceTransformer]
) -> bool:
    """Compare tokens per second of texts of one length; return whether the server meets the targets."""
    shares: list[float] = []
    ratios: dict[str, list[float]] = {peer: [] for peer in peers}
    served_rate(server, text, length, 1.0)  # warm-up
    for _ in range(ROUNDS):
        rate = served_rate(server, text, length, ROUND_S)
        limit = max(backend.tokens_per_second(1, length, ROUND_S / len(bare), 30_000) for backend in bare)
        shares.append(rate / limit)
        for peer, encoder in peers.items():
            duration = seconds(lambda: encoder.encode([text] * CONNECTIONS, batch_size=1))  # noqa: B023
            ratios[peer].append(rate / (CONNECTIONS * length / duration))
        print(f"  {rate:.0f} tokens/s, bare {limit:.0f}")
    share = statistics.median(shares)
    beside = {peer: statistics.median(values) for peer, values in ratios.items()}
    print(
        f"{name}, {length} tokens: {share:.2f} of a bare run (0.85), "
        + ", ".join(f"{ratio:.2f} x sentence-transformers with {peer} (1)" for peer, ratio in beside.items())
    )
    return share >= 0.85 and min(beside.values()) > 1


def served_rate(server: RunningServer, text: str, length: int, duration_s: float) -> float:
    """Return tokens per second of connections that each send one text after the other."""
    body, stop = encode_body([text], "base64"), time.perf_counter() + duration_s
    started = time.perf_counter()

    def send(_: int) -> int:
        requests = 0
        with httpx.Client(base_url=server.rest, timeout=300) as client:
            while time.perf_counter() < stop:
                client.post("/v1/encode", json=body).raise_for_status()
                requests += 1
        return requests

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        requests = sum(pool.map(send, range(CONNECTIONS)))
    return requests * length / (time.perf_counter() - started)


def measure_memory(server: RunningServer, client: httpx.Client, text: str) -> bool:
    """Send the longest text once; return whether it needs at most 400 MiB above idle memory."""
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # reset the peak memory of the startup
    rest = resident_mib(server.pid)
    duration = seconds(lambda: client.post("/v1/encode", json=encode_body([text], "base64")).raise_for_status())
    above = resident_mib(server.pid, "VmHWM") - rest
    print(f"{LONGEST} tokens: {duration:.1f} s, {LONGEST / duration:.0f} tokens/s, +{above:.0f} MiB (400)")
    return above <= 400


def measure_beside(server: RunningServer, text: str) -> bool:
    """Return whether the p99 of short texts at most triples while the longest text runs."""
    alone = short_p99(server, 10.0)
    with repeated(server, text):
        beside = short_p99(server, 30.0)
    print(f"W1 at 4: p99 {1000 * alone:.0f} ms, {beside / alone:.1f} x this beside {LONGEST} tokens (3)")
    return beside <= 3 * alone


def short_p99(server: RunningServer, duration_s: float) -> float:
    """Return the 99th percentile of the time of one-sentence requests over four connections, in seconds."""
    stop = time.perf_counter() + duration_s

    def send(_: int) -> list[float]:
        times = []
        with httpx.Client(base_url=server.rest, timeout=300) as client:
            while time.perf_counter() < stop:
                times.append(seconds(lambda: client.post("/v1/encode", json=encode_body([SHORT])).raise_for_status()))
        return times

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        return float(np.percentile([time for times in pool.map(send, range(CONNECTIONS)) for time in times], 99))


def count_started(server: RunningServer) -> float:
    """Return the number of requests whose inference has started: the queue stage ends then."""
    return Reading.take(server.admin).counts.get("queue", 0.0)


@contextmanager
def repeated(server: RunningServer, text: str) -> Iterator[None]:
    """Send a text repeatedly in a thread. The context starts once its first inference runs."""
    stopped, started = threading.Event(), count_started(server)

    def send() -> None:
        with httpx.Client(base_url=server.rest, timeout=300) as client:
            while not stopped.is_set():
                client.post("/v1/encode", json=encode_body([text], "base64")).raise_for_status()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        while count_started(server) == started:
            if not thread.is_alive():
                raise RuntimeError("the request for the long text failed")
            time.sleep(0.02)
        yield
    finally:
        stopped.set()
        thread.join()


def make_text(model: Model, tokens: int) -> str:
    """Return real sentences of exactly `tokens` tokens, special tokens included."""
    sentences, tokenizer = iter(read_sentences()), model.tokenizer()
    text = ""
    while len(offsets := tokenizer.offsets(text)) < tokens:
        text = f"{text} {' '.join(next(sentences) for _ in range(20))}".strip()
    special = tokenizer.lengths(["a"])[0] - 1
    return text[: offsets[tokens - special - 1][1]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
