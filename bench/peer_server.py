"""Serve a library behind a minimal route, inside a peer's environment. Usage: `peer_server.py ENGINE MODEL PORT`.

ENGINE is a sentence-transformers backend (torch, onnx, openvino), or fastembed. A lock serializes the calls, because
the models are not thread-safe.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

engine, directory, port = sys.argv[1:]
NAME = "peer"


def load_sentence_transformers() -> Callable[[list[str]], Any]:
    from sentence_transformers import SentenceTransformer

    encoder: Any = SentenceTransformer(directory, device="cpu", backend=engine)  # type: ignore[arg-type]
    return lambda texts: encoder.encode(texts, show_progress_bar=False).tolist()


def load_fastembed() -> Callable[[list[str]], Any]:
    from fastembed import TextEmbedding  # type: ignore[import-not-found]
    from fastembed.common.model_description import ModelSource, PoolingType  # type: ignore[import-not-found]

    TextEmbedding.add_custom_model(
        model=NAME, pooling=PoolingType.MEAN, normalization=True, sources=ModelSource(url="https://invalid.invalid"),
        dim=384, model_file="model.onnx",
    )  # fmt: skip
    encoder: Any = TextEmbedding(NAME, specific_model_path=directory)
    return lambda texts: [vector.tolist() for vector in encoder.embed(texts)]


encode = load_fastembed() if engine == "fastembed" else load_sentence_transformers()
lock = threading.Lock()
app = FastAPI()


class Body(BaseModel):
    inputs: list[str]


@app.post("/encode")
def encode_texts(body: Body) -> dict[str, list[list[float]]]:
    with lock:
        return {"vectors": encode(body.inputs)}


uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
