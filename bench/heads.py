"""Heads at real sizes, with random weights (C19): reranking beside other libraries, and BGE-M3's three outputs.

The limit is the fastest backend on this CPU, running full batches of the same encoder without a server.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
import transformers

from bench.limit import Limit
from bench.load import started
from bench.machine import Machine, load_average
from bench.peers import FASTEMBED, SENTENCE_TRANSFORMERS, ST_OPENVINO, Environment, PeerError
from bench.project import Model, read_sentences
from bench.random_models import export_silently, save, seconds, served
from service.engine.backends.cpu import detect_cpu
from service.operations.scoring import MaxSim

DOCUMENTS, PAIR_TOKENS = 100, 128
ROUNDS = 5
LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
LARGE_VOCABULARY = 250_002
PEERS = {
    "CrossEncoder with torch": SENTENCE_TRANSFORMERS,
    "CrossEncoder with openvino": ST_OPENVINO,
    "fastembed": FASTEMBED,
}
QUERY = "how do I open a bank account by the river"


def main(arguments: Sequence[str]) -> int:
    """Measure the selected parts; return 0 if all targets are met."""
    parser = argparse.ArgumentParser(prog="python -m bench.heads", description=__doc__)
    parser.add_argument("parts", nargs="*", default=["rerank", "outputs", "maxsim"])
    parts = parser.parse_args(arguments).parts
    print(f"{Machine.read().describe()}, {load_average()}")
    met = []
    with tempfile.TemporaryDirectory() as folder:
        if "rerank" in parts:
            met.append(measure_rerank(Path(folder)))
        if "outputs" in parts:
            met.append(measure_outputs(Path(folder)))
    if "maxsim" in parts:
        met.append(measure_maxsim())
    print(load_average())
    return 0 if all(met) else 1


def measure_rerank(folder: Path) -> bool:
    """Compare a cross-encoder of BERT-base's shape with the limit, and with CrossEncoder on torch."""
    source, artifact = folder / "cross-encoder", folder / "cross-encoder-artifact"
    config = transformers.BertConfig(vocab_size=30_522)
    config.num_labels = 1
    save(transformers.BertForSequenceClassification(config), source)
    export_silently(source, artifact)
    documents = make_documents(Model(artifact))
    limit = Limit(Model(artifact), Machine.read().cores, detect_cpu().fast_bfloat16)
    limit.calibrate(documents[:8], 1.0)
    export_logits(source)
    tokens = DOCUMENTS * PAIR_TOKENS
    shares: list[float] = []
    with ExitStack() as stack:
        peers = {
            name: peer
            for name, environment in PEERS.items()
            if (peer := start_peer(stack, name, environment, source, documents)) is not None
        }
        ratios: dict[str, list[float]] = {name: [] for name in peers}
        server = stack.enter_context(served(artifact))
        client = stack.enter_context(httpx.Client(base_url=server.rest, timeout=120))
        body = {"query": QUERY, "documents": documents, "truncation": "right"}
        client.post("/v1/rerank", json=body).raise_for_status()
        for _ in range(ROUNDS):
            own = seconds(lambda: client.post("/v1/rerank", json=body).raise_for_status())
            shares.append(tokens / own / limit.measure(4.0).tokens_per_second)
            for name, peer in peers.items():
                ratios[name].append(peer() / own)
    share, beside = statistics.median(shares), {name: statistics.median(values) for name, values in ratios.items()}
    print(
        f"rerank of {DOCUMENTS} documents, {PAIR_TOKENS} tokens each with the query: {share:.2f} of the limit (0.85), "
        + ", ".join(f"{ratio:.2f} x {name} (1.3)" for name, ratio in beside.items())
    )
    return share >= 0.85 and min(beside.values(), default=0) >= 1.3


def export_logits(source: Path) -> None:
    """Write model.onnx, which fastembed needs."""
    model: Any = transformers.BertForSequenceClassification.from_pretrained(source, attn_implementation="eager")
    model.eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]
    example = torch.ones(2, 16, dtype=torch.int64)
    torch.onnx.export(
        model, (example, example, example), source / "model.onnx", input_names=names, output_names=["logits"],
        dynamic_axes={name: {0: "batch", 1: "tokens"} for name in names} | {"logits": {0: "batch"}}, dynamo=False,
    )  # fmt: skip


def start_peer(
    stack: ExitStack, name: str, environment: Environment, source: Path, documents: list[str]
) -> Callable[[], float] | None:
    """Start a peer; return a function that ranks once and returns the duration, or None if it is not available."""
    try:
        environment.install()
    except PeerError as error:
        print(f"{name}: skipped: {error}")
        return None
    command = [
        str(environment.python),
        str(Path(__file__).parent / "rerank_peer.py"),
        name.rsplit(maxsplit=1)[-1],
        str(source),
    ]
    process = stack.enter_context(started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"query": QUERY, "documents": documents, "max_length": PAIR_TOKENS}) + "\n")
    process.stdin.flush()
    if process.stdout.readline().strip() != "ready":
        print(f"{name}: skipped: it did not start")
        return None

    def rank() -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    return rank


def measure_outputs(folder: Path) -> bool:
    """Compare BGE-M3's three outputs with the embedding alone, on XLM-RoBERTa-large's shape."""
    source, artifact = folder / "bge-m3", folder / "bge-m3-artifact"
    config = transformers.XLMRobertaConfig(
        vocab_size=LARGE_VOCABULARY, max_position_embeddings=514, type_vocab_size=1, pad_token_id=1, **LARGE
    )
    save(transformers.XLMRobertaModel(config), source)
    size = LARGE["hidden_size"]
    for name, rows in (("sparse_linear.pt", 1), ("colbert_linear.pt", size)):
        torch.save({"weight": torch.randn(rows, size), "bias": torch.randn(rows)}, source / name)
    export_silently(source, artifact)
    texts = make_documents(Model(artifact))[:16]
    ratios = []
    with served(artifact) as server, httpx.Client(base_url=server.rest, timeout=120) as client:

        def encode(outputs: list[str]) -> Callable[[], Any]:
            body = {"inputs": texts, "outputs": outputs, "encoding_format": "base64", "truncation": "right"}
            return lambda: client.post("/v1/encode", json=body).raise_for_status()

        dense, all_three = encode(["pooled"]), encode(["pooled", "sparse", "multi_vector"])
        dense()
        for _ in range(ROUNDS):
            alone = seconds(dense)
            ratios.append(seconds(all_three) / alone)
    ratio = statistics.median(ratios)
    print(f"pooled, sparse and multi_vector of {len(texts)} texts: {ratio:.2f} x the time of pooled alone (1.15)")
    return ratio <= 1.15


def measure_maxsim() -> bool:
    """Measure MaxSim of 1,000 documents of 128 vectors and 32 query vectors, D = 128, in one thread."""
    rng = np.random.default_rng(0)
    query = rng.standard_normal((32, 128)).astype(np.float32)
    documents = [rng.standard_normal((128, 128)).astype(np.float32) for _ in range(1000)]
    milliseconds = 1000 * statistics.median(
        seconds(lambda: MaxSim(mean=False).scores(query, documents)) for _ in range(3 * ROUNDS)
    )
    print(f"MaxSim of 1,000 documents: {milliseconds:.0f} ms (50)")
    return milliseconds <= 50


def make_documents(model: Model) -> list[str]:
    """Return texts of real sentences whose pairs with the query have at least `PAIR_TOKENS` tokens."""
    sentences, tokenizer = iter(read_sentences()), model.tokenizer()
    documents: list[str] = []
    while len(documents) < DOCUMENTS:
        text = ""
        while tokenizer.lengths([f"{QUERY} {text}"])[0] < PAIR_TOKENS + 2:
            text = f"{text} {next(sentences)}".strip()
        ends = [end for _, end in tokenizer.offsets(text)]
        documents.append(text[: ends[PAIR_TOKENS - 3 - len(tokenizer.offsets(QUERY)) - 1]])
    return documents


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
