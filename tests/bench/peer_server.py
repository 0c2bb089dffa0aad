"""Run in a peer's environment: sentence-transformers behind the simplest route. `peer_server.py MODEL PORT`."""

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

directory, port = sys.argv[1:]
encoder: Any = SentenceTransformer(directory, device="cpu")
app = FastAPI()


class Body(BaseModel):
    inputs: list[str]


@app.post("/encode")
def encode(body: Body) -> dict[str, list[list[float]]]:
    return {"vectors": encoder.encode(body.inputs, show_progress_bar=False).tolist()}


uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
