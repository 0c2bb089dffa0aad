"""What the APIs do with inputs over the token limit: the request decides, and ATTENDANT_TRUNCATE if it cannot."""

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from service.engine.model_loader import LoadedModel
from tests.serving import serve

MODEL = "all-MiniLM-L6-v2"
LONG = f"river {'word ' * 2000}money"  # over the limit of characters too
CHOICES = ("error", "right", "left", "auto")


@pytest.fixture(scope="module", params=CHOICES)
def server(request: pytest.FixtureRequest, model: LoadedModel) -> Iterator[tuple[str, httpx.Client]]:
    with serve(model, truncate=request.param) as client:
        yield request.param, client


def expected(client: httpx.Client, side: str) -> Any:
    text = LONG[:1500] if side == "right" else LONG[-1500:]
    response = client.post("/v1/encode", json={"inputs": text, "truncation": side})
    return np.array(response.json()["results"][0]["pooled"])


def embed(client: httpx.Client, **options: Any) -> httpx.Response:
    return client.post("/v1/embeddings", json={"input": ["a", LONG], "model": MODEL} | options)


@pytest.mark.parametrize(
    "options",
    [{}, {"truncate": True}, {"truncate": False}, {"truncate_prompt_tokens": -1}, {"truncate_prompt_tokens": 256}],
    ids=str,
)
def test_embeddings(server: tuple[str, httpx.Client], options: dict[str, Any]) -> None:
    choice, client = server
    wanted = {True: "auto", False: "error"}.get(options.get("truncate"), "auto" if options else choice)  # type: ignore[arg-type]
    response = embed(client, **options)
    if wanted == "error":
        assert response.status_code == 400
        assert "or set truncate to true" in response.json()["error"]["message"] or "characters" in response.text
        return
    vector = np.array(response.json()["data"][1]["embedding"])
    sides = {side: float(vector @ expected(client, side)) for side in ("left", "right")}
    side = "left" if wanted == "left" else "right"
    assert sides.pop(side) > 0.9999  # in bfloat16, the last digits depend on the batch
    assert max(sides.values()) < 0.99


@pytest.mark.parametrize("options", [{}, {"truncation": "error"}, {"truncation": "left"}, {"max_tokens_per_doc": 8},
                                     {"truncate_prompt_tokens": -1}], ids=str)  # fmt: skip
def test_rerank(server: tuple[str, httpx.Client], options: dict[str, Any]) -> None:
    choice, client = server
    text = LONG if "truncation" not in options else LONG[:1500]
    wanted = options.get("truncation", "auto" if options else choice)
    response = client.post("/v1/rerank", json={"query": "river", "documents": ["a", text]} | options)
    if wanted == "error":
        assert response.status_code == 422
        return
    part = text[:1500] if wanted != "left" else text[-1500:]
    exact = {"query": "river", "documents": ["a", part], "truncation": "left" if wanted == "left" else "right"}
    for result, other in zip(
        response.json()["results"], client.post("/v1/rerank", json=exact).json()["results"], strict=True
    ):
        assert result["index"] == other["index"]
        assert result["relevance_score"] == pytest.approx(other["relevance_score"], abs=1e-3)


@pytest.mark.parametrize(("path", "field"), [("/score", "text_2"), ("/pooling", "input")])
def test_vllm(server: tuple[str, httpx.Client], path: str, field: str) -> None:
    choice, client = server
    body = {"text_1": "a", field: LONG} if path == "/score" else {field: LONG, "task": "embed"}
    assert client.post(path, json=body).status_code == (400 if choice == "error" else 200)
    assert client.post(path, json=body | {"truncate_prompt_tokens": -1}).status_code == 200
    wrong = client.post(path, json=body | {"truncate_prompt_tokens": 3})
    assert wrong.json()["error"]["message"] == "truncate_prompt_tokens: not the model's limit (3). Use -1 or 256."


def test_native_api_has_its_own_option(server: tuple[str, httpx.Client]) -> None:
    response = server[1].post("/v1/encode", json={"inputs": "word " * 300})
    assert response.json()["error"]["reason"] == "TOO_LONG"


def test_task_of_jina_selects_the_prompt(server: tuple[str, httpx.Client]) -> None:
    """The default model has no prompts, so that the vectors are equal."""
    plain, query = (embed(server[1], input="a", **options) for options in ({}, {"task": "retrieval.query"}))
    assert plain.json() == query.json()
    assert "x-attendant-ignored" not in query.headers
