"""TEI's /rerank, /predict and /embed_sparse with models that have the head: the numbers are the native API's."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from service.config import Settings
from service.engine.model_loader import LoadedModel
from service.pb import tei_pb2 as pb
from tests.labels import CLASSIFIER, CROSS_ENCODER
from tests.manifests import with_manifest, with_prompts
from tests.model.retriever_cases import BGE_M3
from tests.operation_requests import SHORT_TEXTS, TEXTS, Body, body, optional
from tests.retrievers import SPLADE
from tests.service.test_tei_products import ERROR_TYPES, product
from tests.serving import ServiceThread, load_kind
from tests.stubs import RerankStub
from tests.tei_messages import compare_with_rest

TOLERANCE = 1e-4
MAX_DOCUMENTS = Settings.model_fields["max_documents"].default
OPTIONS = {
    "raw_scores": optional(st.sampled_from([None, True, False])),
    "truncate": optional(st.sampled_from([None, True, False])),
    "truncation_direction": optional(st.sampled_from([None, "Left", "Right", "left"])),
}
RERANK = body(query=SHORT_TEXTS, texts=st.lists(TEXTS, max_size=4), return_text=optional(st.booleans()), **OPTIONS)
PAIR = st.lists(TEXTS, min_size=1, max_size=2)
IDS = st.lists(st.integers(5, 60), min_size=1, max_size=6)
PROMPTS = {"query": "find: ", "document": "text: "}
SPARSE = body(
    inputs=st.one_of(TEXTS, IDS, st.lists(st.one_of(TEXTS, TEXTS, IDS), min_size=1, max_size=4), st.just([])),
    prompt_name=st.sampled_from([...] * 6 + [None, "query", "query", "document", "passage"]),
    truncate=OPTIONS["truncate"],
    truncation_direction=OPTIONS["truncation_direction"],
)
PREDICT = body(inputs=st.one_of(TEXTS, PAIR, st.lists(PAIR, min_size=1, max_size=3)), **OPTIONS)


@dataclass(frozen=True)
class Client:
    """A running service."""

    rest: httpx.Client
    channel: grpc.Channel

    def post(self, path: str, request: Body) -> httpx.Response:
        """Return the response over REST, after a comparison with gRPC if the path is TEI's."""
        response = self.rest.post(path, json=request)
        compare_with_rest(self.channel, path, request, response, TOLERANCE)
        return response


def serve(model: LoadedModel) -> Iterator[Client]:
    with (
        ServiceThread(model) as service,
        httpx.Client(base_url=service.rest, timeout=120) as rest,
        grpc.insecure_channel(service.grpc) as channel,
    ):
        yield Client(rest, channel)


@pytest.fixture(scope="module", params=[CROSS_ENCODER, CLASSIFIER])
def rest(request: pytest.FixtureRequest) -> Iterator[Client]:
    yield from serve(load_kind(request.param))


@pytest.fixture(scope="module", params=[SPLADE, pytest.param(BGE_M3, marks=pytest.mark.slow)])
def sparse(request: pytest.FixtureRequest) -> Iterator[Client]:
    model = load_kind(request.param)
    model = with_manifest(model, with_prompts(model.artifact.manifest, PROMPTS, "document"))
    yield from serve(model)


@product
@given(request=RERANK)
def test_rerank_equals_the_native_api(rest: Client, request: Body) -> None:
    response = rest.post("/rerank", request)
    event(str(response.status_code))
    native = rest.post(
        "/v1/rerank",
        {
            "query": request["query"],
            "documents": [cut(text, request) for text in request["texts"]],
            "raw_scores": request.get("raw_scores") is True,
            "truncation": truncation(request),
        },
    )
    if not request["texts"]:
        assert (response.status_code, response.json()["error_type"]) == (400, "Empty")
    elif "UNSUPPORTED" in native.text:
        assert (response.status_code, response.json()["error_type"]) == (424, "Backend")
    elif check_same_status(response, native):
        results = native.json()["results"]
        assert [rank["index"] for rank in response.json()] == [result["index"] for result in results]
        for rank, result in zip(response.json(), results, strict=True):
            assert rank["score"] == pytest.approx(result["relevance_score"], abs=TOLERANCE)
            text = request["texts"][rank["index"]] if request.get("return_text") else None
            assert rank.get("text") == text


@pytest.mark.parametrize(
    ("fields", "paths"),
    [
        (
            {"documents": ["river", {"text": "money bank", "id": 7}], "return_documents": True},
            ("/rerank", "/v1/rerank"),
        ),
        ({"documents": ["river", "money bank"], "effect": "occlusion", "top_n": 1}, ("/rerank", "/v1/rerank")),
        ({"texts": ["river", "money bank"], "return_text": True}, ("/v1/rerank", "/rerank")),
        ({"documents": []}, ("/rerank", "/v1/rerank")),
        ({"documents": ["a"], "model": "another"}, ("/rerank", "/v1/rerank")),
        ({"documents": ["a"], "return_text": True}, ("/rerank", "/v1/rerank")),
        ({"texts": []}, ("/v1/rerank", "/rerank")),
        ({"texts": "a"}, ("/v1/rerank", "/rerank")),
        ({"texts": ["river", "bank " * 70], "truncate": False}, ("/v1/rerank", "/rerank")),
    ],
)
def test_field_of_the_texts_selects_the_api(rest: Client, fields: Body, paths: tuple[str, str]) -> None:
    """The first path is the other API's. With a model of several labels, each API has its error for that."""
    headers = {"x-request-id": "one"}
    response, expected = (rest.rest.post(path, json={"query": "bank"} | fields, headers=headers) for path in paths)
    assert (response.status_code, response.json()) == (expected.status_code, expected.json())


@pytest.mark.parametrize(
    "content", [b'{"query": "bank"}', b"[]", b"{", b'{"query": 1, "texts": ["a"], "documents": ["b"]}']
)
def test_path_decides_when_no_field_selects_an_api(rest: Client, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    native, tei = (rest.rest.post(path, content=content, headers=headers) for path in ("/v1/rerank", "/rerank"))
    assert native.status_code == tei.status_code == (400 if content == b"{" else 422)
    assert set(native.json()["error"]) > {"code", "reason", "field"}
    assert set(tei.json()) == {"error", "error_type"}


def test_root_is_the_route_of_the_kind_of_model(rest: Client) -> None:
    (kind,) = rest.rest.get("/info").json()["model_type"]
    path, request = {
        "reranker": ("/rerank", {"query": "bank", "texts": ["river", "money bank"]}),
        "classifier": ("/predict", {"inputs": [["river"], ["money", "bank"]]}),
    }[kind]
    assert rest.rest.post("/", json=request).json() == rest.rest.post(path, json=request).json()
    assert rest.rest.post("/", json={"inputs": 7}).status_code == 422
    if kind == "reranker":
        documents = {"query": "bank", "documents": ["river", "money bank"]}
        results = [rest.rest.post(path, json=documents).json()["results"] for path in ("/", "/v1/rerank")]
        assert results[0] == results[1]


@product
@given(request=PREDICT)
def test_predict_equals_the_native_api(rest: Client, request: Body) -> None:
    response = rest.post("/predict", request)
    event(str(response.status_code))
    sent, is_batch = request["inputs"], isinstance(request["inputs"], list) and isinstance(request["inputs"][0], list)
    pairs = sent if is_batch else [[sent] if isinstance(sent, str) else sent]
    items = [dict(zip(("text", "pair"), [cut(text, request) for text in pair], strict=False)) for pair in pairs]
    options = {"raw_scores": request.get("raw_scores") is True, "truncation": truncation(request)}
    native = rest.post("/v1/classify", {"inputs": items, **options})
    if check_same_status(response, native):
        predictions = response.json() if is_batch else [response.json()]
        for found, result in zip(predictions, native.json()["results"], strict=True):
            scores = {label["label"]: label["score"] for label in result["labels"]}
            assert {item["label"]: item["score"] for item in found} == pytest.approx(scores, abs=TOLERANCE)


@product
@given(request=SPARSE)
def test_embed_sparse_equals_the_native_api(sparse: Client, request: Body) -> None:
    response = sparse.post("/embed_sparse", request)
    event(str(response.status_code))
    sent = request["inputs"]
    items = [sent] if isinstance(sent, str) or (sent and isinstance(sent[0], int)) else sent
    if not items:
        assert (response.status_code, response.json()["error_type"]) == (400, "Empty")
        return
    inputs = [cut(item, request) if isinstance(item, str) else {"token_ids": item} for item in items]
    options = {"prompt_name": request["prompt_name"]} if "prompt_name" in request else {}
    native = sparse.post(
        "/v1/encode", {"inputs": inputs, "outputs": ["sparse"], "truncation": truncation(request), **options}
    )
    if native.status_code == 404:  # TEI validates the name of a prompt
        assert (response.status_code, response.json()["error_type"]) == (422, "Validation")
    elif check_same_status(response, native):
        results = native.json()["results"]
        for found, result in zip(response.json(), results, strict=True):
            expected = dict(zip(result["sparse"]["token_ids"], result["sparse"]["weights"], strict=True))
            assert [entry["index"] for entry in found] == result["sparse"]["token_ids"]
            assert {entry["index"]: entry["value"] for entry in found} == pytest.approx(expected, abs=TOLERANCE)
        assert response.headers["x-compute-tokens"] == str(sum(result["token_count"] for result in results))
        assert response.headers["x-compute-characters"] == str(sum(map(len, items)))


def truncation(request: Body) -> str:
    """Return the truncation under the native API's name."""
    if request.get("truncate") is False:
        return "error"
    return (request.get("truncation_direction") or "right").lower()


def cut(text: str, request: Body) -> str:
    """Return the part of a text within the limit of characters, as a truncated one."""
    limit, side = 64 * 64, truncation(request)
    return text if side == "error" or len(text) <= limit else text[:limit] if side == "right" else text[-limit:]


def check_same_status(response: httpx.Response, native: httpx.Response) -> bool:
    """Return whether both APIs accept the request; otherwise, check that both reject it alike."""
    assert response.status_code == native.status_code, (response.text[:200], native.text[:200])
    if response.status_code == 200:
        return True
    error: Any = response.json()
    assert set(error) == {"error", "error_type"}
    assert error["error_type"] in ERROR_TYPES[response.status_code]
    assert "documents" not in error["error"]
    return False


def test_ranking_of_a_stream(rest: Client) -> None:
    """Each message may contain a different query, and the limit of documents applies to the stream."""
    stub: Any = RerankStub(rest.channel)
    pairs = [("money", "bank"), ("river", "bank"), ("river", "money bank")]
    if len(rest.rest.get("/v1/model").json()["labels"]) > 1:
        with pytest.raises(grpc.RpcError, match="not a reranking model"):
            stub.RerankStream(iter([]))
        return
    ranks = stub.RerankStream(pb.RerankStreamRequest(query=query, text=text) for query, text in pairs).ranks
    expected = rest.rest.post("/predict", json={"inputs": [list(pair) for pair in pairs]}).json()
    for rank in ranks:
        assert rank.score == pytest.approx(expected[rank.index][0]["score"], abs=TOLERANCE)
    assert [rank.score for rank in ranks] == sorted((rank.score for rank in ranks), reverse=True)
    for messages, problem in (
        ([], "Stream without a message"),
        ([("a", "b"), ("a", "")], "text: empty or blank"),
        ([("", "b")], "query: empty or blank"),
        ([("a", "b")] * (MAX_DOCUMENTS + 1), "text: too many items"),
    ):
        with pytest.raises(grpc.RpcError, match=problem):
            stub.RerankStream(pb.RerankStreamRequest(query=query, text=text) for query, text in messages)
