"""Accuracy of served vectors, compared with sentence-transformers and transformers on the same weights."""

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from bench.project import Model
from bench.workloads import read_corpus
from model.source.hub import locate
from tests.conftest import serving

pytestmark = pytest.mark.slow

MIN_COSINE = {"float32": 0.999999, "bfloat16": 0.9999, "float16": 0.9999}
SHORT_TEXTS = ("Go.", "yes", "7", "A cat sat.", "why?", "Rain again")

Vectors = NDArray[np.float32]


@pytest.fixture(scope="module")
def oracle() -> SentenceTransformer:
    return SentenceTransformer(str(locate("default").directory), device="cpu")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Return 500 sentences and passages of 1 to 256 tokens."""
    corpus = read_corpus(Model.default().tokenizer(), 1000)
    long = [text for text, _ in corpus.passages[:80]]
    return [*SHORT_TEXTS, *(text for text, _ in corpus.sentences[: 500 - len(SHORT_TEXTS) - len(long)]), *long]


@pytest.fixture(scope="module")
def expected(oracle: SentenceTransformer, texts: list[str]) -> Vectors:
    """Return normalized embeddings from sentence-transformers, (N, D)."""
    embeddings: Vectors = oracle.encode(texts, batch_size=16, normalize_embeddings=True, show_progress_bar=False)
    return embeddings


@pytest.fixture(scope="module", params=["auto", "float32"])
def client_by_precision(request: pytest.FixtureRequest) -> Iterator[tuple[httpx.Client, str]]:
    """Yield a client of a server in the default precision or in float32, and the reported precision."""
    with serving(precision=request.param) as running, httpx.Client(base_url=running.rest, timeout=60) as client:
        yield client, client.get("/v1/model").json()["precision"]


def embed(client: httpx.Client, texts: list[str], **options: Any) -> Vectors:
    """Return the pooled vectors of `texts`, sent 32 per request."""
    vectors = []
    for start in range(0, len(texts), 32):
        body = {"inputs": texts[start : start + 32], **options}
        response = client.post("/v1/encode", json=body).raise_for_status().json()
        vectors += [result["pooled"] for result in response["results"]]
    return np.array(vectors, dtype=np.float32)


def cosines(a: Vectors, b: Vectors) -> NDArray[np.float64]:
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    product: NDArray[np.float64] = (a64 * b64).sum(axis=1)
    norms: NDArray[np.float64] = np.linalg.norm(a64, axis=1) * np.linalg.norm(b64, axis=1)
    return product / norms


def test_pooled_vectors_equal_sentence_transformers(
    client_by_precision: tuple[httpx.Client, str], texts: list[str], expected: Vectors
) -> None:
    """The minimum cosine similarity must meet the threshold of the precision."""
    client, precision = client_by_precision
    smallest = cosines(embed(client, texts), expected).min()
    print(f"smallest cosine to sentence-transformers over {len(texts)} texts in {precision}: {smallest:.8f}")
    assert smallest >= MIN_COSINE[precision]


def test_token_vectors_equal_last_hidden_state_of_transformers(
    client_by_precision: tuple[httpx.Client, str], oracle: SentenceTransformer, texts: list[str]
) -> None:
    """The tolerance is 1e-4 in float32, and a cosine similarity of at least 0.999 in bfloat16."""
    client, precision = client_by_precision
    encoder: Any = oracle[0].auto_model
    difference, smallest = 0.0, 1.0
    sample = texts[::10]
    for text in sample:
        body = {"inputs": text, "outputs": ["tokens"]}
        response = client.post("/v1/encode", json=body).raise_for_status().json()
        vectors = np.array(response["results"][0]["token_vectors"], dtype=np.float32)
        features = oracle.tokenizer([text], return_tensors="pt")
        with torch.inference_mode():
            hidden = encoder(**features).last_hidden_state[0].numpy()
        difference = max(difference, float(np.abs(vectors - hidden).max()))
        smallest = min(smallest, float(cosines(vectors, hidden).min()))
    print(
        f"token vectors of {len(sample)} texts in {precision}: max abs {difference:.2e}, smallest cosine {smallest:.7f}"
    )
    assert (difference <= 1e-4) if precision == "float32" else (smallest >= 0.999)


def test_embedding_does_not_depend_on_batch_composition(
    client_by_precision: tuple[httpx.Client, str], texts: list[str]
) -> None:
    """Each text is sent alone, with other texts, and in another order."""
    client, precision = client_by_precision
    sample = texts[::5]
    batched = embed(client, sample)
    order = np.random.default_rng(3).permutation(len(sample))
    shuffled = np.empty_like(batched)
    shuffled[order] = embed(client, [sample[index] for index in order])
    alone = np.concatenate([embed(client, [text]) for text in sample])
    smallest = min(cosines(batched, shuffled).min(), cosines(batched, alone).min())
    print(f"smallest cosine between batch compositions in {precision}: {smallest:.8f}")
    assert smallest >= MIN_COSINE[precision]
