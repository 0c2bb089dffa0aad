"""Rank documents with a library, inside a peer's environment. Usage: `rerank_peer.py ENGINE MODEL`.

ENGINE is a backend of sentence-transformers' CrossEncoder (torch, openvino), or fastembed. The first line of input is a
JSON object with `query`, `documents` and `max_length`. After "ready", each further line starts a ranking, and the
program prints its duration in seconds.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

engine, directory = sys.argv[1:]
NAME = "peer"
BATCH = 32


def load_sentence_transformers(job: dict[str, Any]) -> Callable[[], Any]:
    from sentence_transformers import CrossEncoder

    encoder: Any = CrossEncoder(directory, device="cpu", backend=engine, max_length=job["max_length"])
    pairs = [(job["query"], text) for text in job["documents"]]
    return lambda: encoder.predict(pairs, batch_size=BATCH, show_progress_bar=False)


def load_fastembed(job: dict[str, Any]) -> Callable[[], Any]:
    from fastembed.common.model_description import ModelSource  # type: ignore[import-not-found]
    from fastembed.rerank.cross_encoder import TextCrossEncoder  # type: ignore[import-not-found]

    TextCrossEncoder.add_custom_model(
        model=NAME, sources=ModelSource(url="https://invalid.invalid"), model_file="model.onnx"
    )
    encoder: Any = TextCrossEncoder(NAME, specific_model_path=directory)
    return lambda: list(encoder.rerank(job["query"], job["documents"], batch_size=BATCH))


job = json.loads(sys.stdin.readline())
rank = (load_fastembed if engine == "fastembed" else load_sentence_transformers)(job)
rank()
print("ready", flush=True)
for _ in sys.stdin:
    started = time.perf_counter()
    rank()
    print(time.perf_counter() - started, flush=True)
