"""Truncation sides and limits of roles that a model names, in every API: compared with its tokenizer in transformers.

The model has 12 tokens per input, but 8 for queries and 20 for documents, and its tokenizer truncates at the start.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import transformers
from attendant_client import AttendantError, Client

from model.export.export import export
from service.commands.sources import TextEncoder
from service.config import Settings
from service.engine.model_loader import LoadedModel
from service.pb import tei_pb2
from tests.labels import CROSS_ENCODER, export_classifier
from tests.model.retriever_cases import BGE_M3
from tests.retrievers import SPLADE, export_retriever
from tests.service.conftest import open_harness
from tests.serving import ServiceThread
from tests.stubs import EmbedStub

ROLE_LIMITS = {"query": 8, "document": 20}
LIMITS: dict[Any, int] = {None: 12, **ROLE_LIMITS}
TEXT = "river bank money grows the a in river river bank bank money money grows grows by the river on the bank of it"
LONG = "river " + "money " * 400 + "bank"
"""A text of more than the characters that the model accepts, which some APIs cut before they encode it."""
KINDS = ("http", "grpc")


@dataclass(frozen=True)
class Served:
    """A running service and the tokenizer of its model, in transformers."""

    service: ServiceThread
    model: LoadedModel
    tokenizer: Any

    def client(self, kind: str) -> Client:
        return Client(self.service.rest if kind == "http" else f"grpc://{self.service.grpc}")

    def ids(self, text: str, role: str | None = None) -> list[int]:
        """Return the tokens that transformers keeps."""
        ids: list[int] = self.tokenizer(text, truncation=True, max_length=LIMITS[role])["input_ids"]
        return ids

    def post(self, path: str, body: Any) -> Any:
        return httpx.post(self.service.rest + path, json=body).raise_for_status().json()

    def vector(self, text: str = TEXT, truncation: str = "left", role: str | None = None) -> Any:
        body = {"inputs": text, "truncation": truncation, "role": role, "normalize": True}
        return self.post("/v1/encode", body)["results"][0]["pooled"]


@pytest.fixture(scope="module")
def served(tiny_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("settings") / "artifact"
    published = shutil.copytree(tiny_artifact.parent / "tiny-bert", root.parent / "model")
    limits = {"max_seq_length": LIMITS[None]} | {f"{role}_length": limit for role, limit in ROLE_LIMITS.items()}
    (published / "sentence_bert_config.json").write_text(json.dumps(limits))
    (published / "tokenizer_config.json").write_text(json.dumps({"truncation_side": "left"}))
    export(str(published), root, revision=None, name="tiny", progress=lambda step: None)
    model = LoadedModel.load(Settings(model_dir=root, precision="float32"))
    tokenizer = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(root / "tokenizer.json"), truncation_side="left"
    )
    with ServiceThread(model) as service:
        yield Served(service, model, tokenizer)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("role", LIMITS)
def test_auto_truncates_like_the_tokenizer(served: Served, kind: str, role: Any) -> None:
    with served.client(kind) as client:
        options: Any = {"truncation": "auto", "outputs": ["tokens"]} | ({} if role is None else {"role": role})
        (result,) = client.encode([TEXT], **options).results
        assert result.tokens is not None
        assert [token.id for token in result.tokens] == served.ids(TEXT, role)
        assert result.token_count == LIMITS[role]
        with pytest.raises(AttendantError, match=f"limit {LIMITS[role]}"):
            client.encode([TEXT], **options | {"truncation": "error"})


@pytest.mark.parametrize("kind", KINDS)
def test_similarity_and_rerank_read_queries_and_documents(served: Served, kind: str) -> None:
    with served.client(kind) as client:
        similar = client.similarity([TEXT], [TEXT, "money"], truncation="auto")
        counts = [text.token_count for text in (*similar.queries, *similar.documents)]
        assert counts == [LIMITS["query"], LIMITS["document"], 3]
        ranked = client.rerank(TEXT, [TEXT, "money"], truncation="auto")
        assert ranked.token_count == sum(counts)
        assert ranked.truncated_inputs == 2
        scores = {result.index: result.relevance_score for result in ranked.results}
        assert [scores[0], scores[1]] == pytest.approx(similar.scores[0].tolist(), abs=1e-6)
        with pytest.raises(AttendantError, match=f"query: too long .*limit {LIMITS['query']}"):
            client.rerank(TEXT, ["money"])


def tei_rpc(served: Served, text: str, **options: Any) -> Any:
    with grpc.insecure_channel(served.service.grpc) as channel:
        request = tei_pb2.EmbedRequest(inputs=text, truncate=True, **options)
        return list(EmbedStub(channel).Embed(request).embeddings)


def openai(served: Served, text: str, **options: Any) -> Any:
    body = {"model": "tiny", "input": text[-700:], "truncate": True, **options}
    return served.post("/v1/embeddings", body)["data"][0]["embedding"]


def cohere(served: Served, text: str, **options: Any) -> Any:
    body = {"texts": [text], "input_type": "classification", **options}
    return served.post("/v2/embed", body)["embeddings"]["float"][0]


REQUESTS: dict[str, tuple[Any, str, str | None]] = {
    "OpenAI": (openai, "left", None),
    "OpenAI, query": (lambda served, text: openai(served, text, input_type="query"), "left", "query"),
    "OpenAI, passage": (lambda served, text: openai(served, text, input_type="passage"), "left", "document"),
    "TEI": (lambda served, text: served.post("/embed", {"inputs": text})[0], "left", None),
    "TEI, right": (
        lambda served, text: served.post("/embed", {"inputs": text, "truncation_direction": "Right"})[0],
        "right",
        None,
    ),
    "TEI, gRPC": (tei_rpc, "left", None),
    "TEI, gRPC, right": (
        lambda served, text: tei_rpc(served, text, truncation_direction=tei_pb2.TRUNCATION_DIRECTION_RIGHT),
        "right",
        None,
    ),
    "Cohere": (cohere, "left", None),
    "Cohere, END": (lambda served, text: cohere(served, text, truncate="END"), "right", None),
    "Cohere, query": (lambda served, text: cohere(served, text, input_type="search_query"), "left", "query"),
    "Cohere, document": (lambda served, text: cohere(served, text, input_type="search_document"), "left", "document"),
    "infinity": (
        lambda served, text: served.post("/infinity/embeddings", {"model": "tiny", "input": text})["data"][0][
            "embedding"
        ],
        "left",
        None,
    ),
    "vLLM": (
        lambda served, text: served.post(
            "/pooling", {"input": text[:700], "task": "embed", "truncate_prompt_tokens": -1}
        )["data"][0]["data"],
        "left",
        None,
    ),
}


@pytest.mark.parametrize("api", REQUESTS)
def test_apis_truncate_at_the_side_of_the_model_unless_the_client_names_one(served: Served, api: str) -> None:
    call, side, role = REQUESTS[api]

    def unit(vector: Any) -> Any:
        return np.array(vector) / np.linalg.norm(vector)

    np.testing.assert_allclose(unit(call(served, TEXT)), unit(served.vector(TEXT, side, role)), atol=1e-5)
    if not api.startswith(("OpenAI", "vLLM")):  # the others cut texts of too many characters
        part = "money " * 30
        kept = served.vector(f"{part}bank" if side == "left" else f"river {part}", side, role)
        np.testing.assert_allclose(unit(call(served, LONG)), unit(kept), atol=1e-5)


@pytest.mark.parametrize("path", ["/v2/rerank", "/v1/rerank", "/infinity/rerank"])
def test_rerank_apis_truncate_at_the_side_of_the_model(served: Served, path: str) -> None:
    body: dict[str, Any] = {"query": TEXT, "documents": [TEXT, "money bank"]}
    native = served.post("/v1/rerank", body | {"truncation": "left"})["results"]
    body |= {"max_tokens_per_doc": 8} if path == "/v1/rerank" else {}
    results = served.post(path, body)["results"]
    for result, expected in zip(results, native, strict=True):
        assert result["index"] == expected["index"]
        assert result["relevance_score"] == pytest.approx(expected["relevance_score"], abs=1e-5)


async def test_commands_read_queries_and_documents(served: Served) -> None:
    async with open_harness(served.model) as harness:
        for role in LIMITS:
            vectors = await TextEncoder(harness.engine, "test").vectors(Path("f"), [("line 1", TEXT)], role)
            expected = np.array(served.vector(TEXT, "left", role))
            np.testing.assert_allclose(vectors[0], expected, atol=1e-5)


SCORED_BY = {CROSS_ENCODER: "cross_encoder", BGE_M3: "late_interaction", SPLADE: "sparse", "tiny": "embeddings"}


@pytest.mark.parametrize("kind", SCORED_BY)
def test_rerank_says_what_computed_the_scores(kind: str, tiny_artifact: Path) -> None:
    export = export_classifier if kind == CROSS_ENCODER else export_retriever
    artifact = tiny_artifact if kind == "tiny" else export(kind)
    with ServiceThread(LoadedModel.load(Settings(model_dir=artifact, precision="float32"))) as service:
        for url in (service.rest, f"grpc://{service.grpc}"):
            with Client(url) as client:
                assert client.rerank("money", ["bank", "river"]).scored_by == SCORED_BY[kind]
        for path in ("/v1/rerank", "/v2/rerank"):
            response = httpx.post(service.rest + path, json={"query": "money", "documents": ["bank"]})
            assert response.headers["x-attendant-scored-by"] == SCORED_BY[kind]
