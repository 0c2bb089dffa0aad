"""The served vectors against sentence-transformers and transformers with the same weights."""

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from model.source import locate
from service.pb import encoder_pb2 as pb
from service.pb import encoder_pb2_grpc
from tests.bench.project import Model
from tests.bench.workloads import read_corpus
from tests.conftest import RunningServer, start_server, stop_server

pytestmark = pytest.mark.slow

BARS = {"float32": 0.999999, "bfloat16": 0.9999, "float16": 0.9999}
SHORT = ("Go.", "yes", "7", "A cat sat.", "why?", "Rain again")

Vectors = NDArray[np.float32]


@pytest.fixture(scope="module")
def oracle() -> SentenceTransformer:
    return SentenceTransformer(str(locate("default").directory), device="cpu")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """500 real sentences and passages of 1 to 256 tokens."""
    corpus = read_corpus(Model.default().tokenizer(), 1000)
    long = [text for text, _ in corpus.passages[:80]]
    return [*SHORT, *(text for text, _ in corpus.sentences[: 500 - len(SHORT) - len(long)]), *long]


@pytest.fixture(scope="module")
def expected(oracle: SentenceTransformer, texts: list[str]) -> Vectors:
    found: Vectors = oracle.encode(texts, batch_size=16, normalize_embeddings=True, show_progress_bar=False)
    return found


@pytest.fixture(scope="module", params=["auto", "float32"])
def precise(request: pytest.FixtureRequest) -> Iterator[tuple[httpx.Client, str, RunningServer]]:
    """A server in the machine's own precision, and one in float32; with the precision that it says it has."""
    running = start_server(precision=request.param)
    with httpx.Client(base_url=running.rest, timeout=60) as client:
        yield client, client.get("/v1/model").json()["precision"], running
    assert stop_server(running) == 0


def embed(client: httpx.Client, texts: list[str], **options: Any) -> Vectors:
    """Pooled vectors of `texts`, 32 a request."""
    vectors = []
    for at in range(0, len(texts), 32):
        reply = client.post("/v1/encode", json={"inputs": texts[at : at + 32], **options}).raise_for_status().json()
        vectors += [result["pooled"] for result in reply["results"]]
    return np.array(vectors, dtype=np.float32)


def cosines(a: Vectors, b: Vectors) -> NDArray[np.float64]:
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    product: NDArray[np.float64] = (a64 * b64).sum(axis=1)
    lengths: NDArray[np.float64] = np.linalg.norm(a64, axis=1) * np.linalg.norm(b64, axis=1)
    return product / lengths


def test_pooled_vectors_are_those_of_sentence_transformers(
    precise: tuple[httpx.Client, str, RunningServer], texts: list[str], expected: Vectors
) -> None:
    """Over 500 texts the smallest cosine is above the bar of the precision."""
    client, precision, _ = precise
    smallest = cosines(embed(client, texts), expected).min()
    print(f"smallest cosine to sentence-transformers over {len(texts)} texts in {precision}: {smallest:.8f}")
    assert smallest >= BARS[precision]


def test_token_vectors_are_the_last_hidden_state(
    precise: tuple[httpx.Client, str, RunningServer], oracle: SentenceTransformer, texts: list[str]
) -> None:
    """In float32 within 1e-4 of transformers' last_hidden_state; in bfloat16 each token's cosine is at least 0.999."""
    client, precision, _ = precise
    encoder: Any = oracle[0].auto_model
    worst, smallest = 0.0, 1.0
    sample = texts[::10]
    for text in sample:
        reply = client.post("/v1/encode", json={"inputs": text, "outputs": ["tokens"]}).raise_for_status().json()
        ours = np.array(reply["results"][0]["token_vectors"], dtype=np.float32)
        features = oracle.tokenizer([text], return_tensors="pt")
        with torch.inference_mode():
            theirs = encoder(**features).last_hidden_state[0].numpy()
        worst = max(worst, float(np.abs(ours - theirs).max()))
        smallest = min(smallest, float(cosines(ours, theirs).min()))
    print(f"token vectors of {len(sample)} texts in {precision}: max abs {worst:.2e}, smallest cosine {smallest:.7f}")
    assert (worst <= 1e-4) if precision == "float32" else (smallest >= 0.999)


def test_embedding_does_not_depend_on_batch_composition(
    precise: tuple[httpx.Client, str, RunningServer], texts: list[str]
) -> None:
    """Alone, with others, and with others in another order."""
    client, precision, _ = precise
    sample = texts[::5]
    together = embed(client, sample)
    order = np.random.default_rng(3).permutation(len(sample))
    shuffled = np.empty_like(together)
    shuffled[order] = embed(client, [sample[index] for index in order])
    alone = np.concatenate([embed(client, [text]) for text in sample])
    smallest = min(cosines(together, shuffled).min(), cosines(together, alone).min())
    print(f"smallest cosine of a text with itself in other company in {precision}: {smallest:.8f}")
    assert smallest >= BARS[precision]


def test_rest_and_grpc_give_the_same_numbers(
    precise: tuple[httpx.Client, str, RunningServer], texts: list[str]
) -> None:
    """One text a request through both, so that it runs in the same row: bit for bit the same."""
    client, _, running = precise

    async def over_grpc(text: str) -> bytes:
        async with grpc.aio.insecure_channel(running.grpc) as channel:
            stub = encoder_pb2_grpc.EncoderServiceStub(channel)  # type: ignore[no-untyped-call]
            reply = await stub.Encode(pb.EncodeRequest(inputs=[pb.Input(text=text)]))
            data: bytes = reply.results[0].pooled.data
            return data

    for text in texts[::50]:
        assert np.frombuffer(asyncio.run(over_grpc(text)), "<f4").tolist() == embed(client, [text])[0].tolist()
