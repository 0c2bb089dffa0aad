"""The TEI API, REST and gRPC: combinations of fields and every kind of head, compared with the native API."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from service.config import Settings
from service.engine.model_loader import LoadedModel
from service.pb import tei_pb2 as pb
from tests.conftest import EXAMPLES
from tests.labels import CLASSIFIER, CROSS_ENCODER
from tests.manifests import with_manifest, with_prompts
from tests.model.retriever_cases import BGE_M3
from tests.operation_requests import SHORT_TEXTS, TEXTS, Body, body, optional
from tests.response_contract import assert_close, to_array
from tests.retrievers import SPLADE
from tests.serving import ServiceThread, load_kind
from tests.stubs import RerankStub
from tests.tei_messages import compare_with_rest

PROMPTS = {"query": "find: ", "document": "text: "}
ERROR_TYPES = {
    400: {"Empty", "Validation"}, 413: {"Validation"}, 422: {"Validation"}, 424: {"Backend"},
}  # fmt: skip
STATUS = {404: 422}
"""Maps the native API's statuses to TEI's, where they differ."""
HEADS = ("/embed_sparse", "/rerank", "/predict")


@dataclass(frozen=True)
class Client:
    """A running service, its model's prompts, and the tolerance for its precision."""

    rest: httpx.Client
    channel: grpc.Channel
    prompts: dict[str, str]
    default_prompt: str
    vocab_size: int
    max_characters: int
    special_ids: tuple[int, int]
    tolerance: float

    def post(self, path: str, request: Any) -> httpx.Response:
        return self.rest.post(path, json=request)

    def prompt(self, request: Body) -> str | None:
        """Return the prompt that applies, or None if it is unknown."""
        name = request.get("prompt_name")
        return self.default_prompt if name is None else self.prompts.get(name)


@pytest.fixture(scope="module", params=["plain", "prompted"])
def client(request: pytest.FixtureRequest, model: LoadedModel) -> Iterator[Client]:
    """Clients for the default model without prompts, and with prompts including a default."""
    if request.param == "prompted":
        model = with_manifest(model, with_prompts(model.artifact.manifest, PROMPTS, "document"))
    with (
        ServiceThread(model) as service,
        httpx.Client(base_url=service.rest, timeout=120) as rest,
        grpc.insecure_channel(service.grpc) as channel,
    ):
        info = rest.get("/v1/model").json()
        default = info["prompts"].get(info["default_prompt_name"], "")
        tolerance = 1e-5 if info["precision"] == "float32" else 5e-4
        limit = info["limits"]["max_input_characters"]
        yield Client(rest, channel, info["prompts"], default, info["vocab_size"], limit, (101, 102), tolerance)


def truncation_fields() -> Any:
    return {
        "truncate": optional(st.sampled_from([None, True, False])),
        "truncation_direction": optional(st.sampled_from([None, "Left", "Right", "left", "right"])),
        "prompt_name": st.sampled_from([...] * 12 + [None, "query", "query", "document", "passage"]),
    }


CUT_TEXTS = st.builds(
    lambda word, count: f"{word} " * count, st.sampled_from(["bank", "déjà"]), st.integers(3000, 4200)
)
"""Texts around the character limit."""
ANY_TEXTS = st.one_of(*[TEXTS] * 18, CUT_TEXTS, st.just(""))
IDS = st.lists(st.integers(0, 30_522), min_size=1, max_size=20).flatmap(
    lambda ids: st.sampled_from([ids, ids, [101, *ids, 102], [101, *ids], [101, 102], []])
)
ITEMS = st.lists(st.one_of(ANY_TEXTS, ANY_TEXTS, IDS), min_size=1, max_size=4)
INPUTS = st.one_of(ANY_TEXTS, *[ITEMS] * 4, IDS, st.just([]))
SENTENCES = st.fixed_dictionaries(
    {
        "source_sentence": ANY_TEXTS,
        "sentences": st.one_of(*[st.lists(ANY_TEXTS, min_size=1, max_size=3)] * 9, st.just([])),
    }
)
PAIRS = st.lists(SHORT_TEXTS, max_size=3)
SCORES = {"raw_scores": optional(st.booleans()), "truncate": optional(st.booleans())}
BODIES: dict[str, st.SearchStrategy[Body]] = {
    "/embed": body(
        inputs=INPUTS,
        normalize=optional(st.sampled_from([None, True, False])),
        dimensions=optional(st.one_of(st.none(), st.integers(0, 385))),
        unknown=optional(st.just({"a": [1]})),
        **truncation_fields(),
    ),
    "/embed_all": body(inputs=INPUTS, **truncation_fields()),
    "/similarity": body(inputs=SENTENCES, parameters=optional(st.one_of(st.none(), body(**truncation_fields())))),
    "/tokenize": body(
        inputs=st.one_of(ANY_TEXTS, st.lists(ANY_TEXTS, max_size=3)),
        add_special_tokens=optional(st.sampled_from([None, True, False])),
        prompt_name=truncation_fields()["prompt_name"],
    ),
    "/decode": body(ids=st.one_of(IDS, st.lists(IDS, max_size=3)), skip_special_tokens=optional(st.booleans())),
    "/embed_sparse": body(inputs=INPUTS, **truncation_fields()),
    "/rerank": body(query=SHORT_TEXTS, texts=PAIRS, return_text=optional(st.booleans()), **SCORES),
    "/predict": body(inputs=st.one_of(SHORT_TEXTS, PAIRS, st.lists(PAIRS, max_size=3)), **SCORES),
}
JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -1, 2**70, 1.5, "", "Left", "x" * 100, [], {}, [[]], [None], [[1, "a"]], [1, "a"], ["a", 1],
     {"sentences": "a"}, {"source_sentence": 1, "sentences": ["a"]}, {"truncate": 1, "prompt_name": []}]
)  # fmt: skip

product = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES <= 300, suppress_health_check=list(HealthCheck)
)


@product
@given(data=st.data())
def test_responses_follow_the_contract(client: Client, data: st.DataObject) -> None:
    """Compares each response with the native API's for the same texts, prompts and options."""
    path = data.draw(st.sampled_from([*BODIES, *[path for path in ("/", *BODIES) if path not in HEADS] * 3]))
    request = data.draw(BODIES["/embed" if path == "/" else path])
    response = client.post(path, request)
    event(f"{path} {response.status_code}")
    compare_with_rest(client.channel, path, request, response, client.tolerance)
    if response.status_code != 200:
        check_error(response)
    if path in HEADS:  # tested below, with models that have the head
        assert response.status_code in (400, 422, 424)
        return
    if path == "/decode":
        check_decode(client, request, response)
    elif path == "/similarity":
        check_similarity(client, request, response)
    elif path == "/tokenize":
        check_tokenize(client, request, response)
    else:
        check_vectors(client, path, request, response)


@product
@given(data=st.data())
def test_invalid_values_are_rejected(client: Client, data: st.DataObject) -> None:
    """Replaces one field of a request with a value of another type."""
    path = data.draw(st.sampled_from([*BODIES, "/"]))
    request = data.draw(BODIES["/embed" if path == "/" else path])
    request[data.draw(st.sampled_from(sorted(request)))] = data.draw(JUNK)
    response = client.post(path, data.draw(st.sampled_from([request, request, request, [request]])))
    event(f"{path} {response.status_code}")
    if response.status_code != 200:
        check_error(response)


def check_error(response: httpx.Response) -> None:
    assert response.status_code in ERROR_TYPES, response.text
    error = response.json()
    assert set(error) == {"error", "error_type"}
    assert error["error_type"] in ERROR_TYPES[response.status_code]
    assert len(response.content) <= 1024


def check_status(response: httpx.Response, native: httpx.Response, *, empty: bool) -> bool:
    """Return whether both APIs accept the request. Otherwise, check that both return the same error."""
    if empty:
        assert (response.status_code, response.json()["error_type"]) == (400, "Empty")
        return False
    expected = STATUS.get(native.status_code, native.status_code)
    assert response.status_code == expected, (response.text[:200], native.text[:200])
    return expected == 200


def to_items(inputs: Any) -> list[Any]:
    return [inputs] if isinstance(inputs, str) or (inputs and isinstance(inputs[0], int)) else inputs


def native_truncation(request: Body) -> str:
    """Return the truncation under the native API's name."""
    if request.get("truncate") is False:
        return "error"
    return (request.get("truncation_direction") or "right").lower()


def cut(client: Client, text: str, side: str) -> str:
    limit = client.max_characters
    return text[:limit] if side == "right" else text[-limit:] if side == "left" else text


def native_inputs(client: Client, request: Body, prompt: str = "") -> list[Any]:
    """Return the native API's inputs: truncated, without special tokens, and with the prompt prepended to the texts."""
    converted: list[Any] = []
    for item in to_items(request["inputs"]):
        if isinstance(item, str):
            converted.append(cut(client, prompt + item if item.strip() else item, native_truncation(request)))
        else:
            framed = len(item) >= 2 and (item[0], item[-1]) == client.special_ids
            converted.append({"token_ids": item[1:-1] if framed else item})
    return converted


def check_vectors(client: Client, path: str, request: Body, response: httpx.Response) -> None:
    items = to_items(request["inputs"])
    with_ids = any(not isinstance(item, str) for item in items)
    options: Body = {"truncation": native_truncation(request)}
    if path == "/embed_all":
        name, prompt = "token_vectors", client.prompt(request)
        if items and (prompt is None or (with_ids and request.get("prompt_name") is not None)):
            assert response.status_code == 422
            return
        options |= {"inputs": native_inputs(client, request, prompt or ""), "outputs": ["tokens"], "prompt": ""}
    else:
        name = "pooled"
        options["inputs"] = native_inputs(client, request)
        options |= {field: request[field] for field in ("prompt_name", "dimensions") if field in request}
        options["normalize"] = request.get("normalize") is not False
    if client.prompt(request) is None and not items:
        assert response.status_code in (400, 422)
        return
    native = client.post("/v1/encode", options)
    if check_status(response, native, empty=not items):
        results, vectors = native.json()["results"], response.json()
        assert len(vectors) == len(results)
        for vector, result in zip(vectors, results, strict=True):
            assert_close(to_array(vector), to_array(result[name]), client.tolerance)
        tokens = sum(result["token_count"] for result in results)
        assert response.headers["x-compute-tokens"] == str(tokens)
        assert response.headers["x-compute-characters"] == str(sum(map(len, items)))


def check_similarity(client: Client, request: Body, response: httpx.Response) -> None:
    options = request.get("parameters") or {}
    inputs, side, prompt = request["inputs"], native_truncation(options), client.prompt(options)
    if prompt is None:
        assert response.status_code == 422
        return
    body = {
        "queries": [cut(client, inputs["source_sentence"], side)],
        "documents": [cut(client, text, side) for text in inputs["sentences"]],
        "similarity": "cosine",
        "truncation": side,
        "query_prompt": prompt,
        "document_prompt": prompt,
    }
    native = client.post("/v1/similarity", body)
    # The source is checked first.
    empty = not inputs["sentences"] and "queries" not in native.text
    if check_status(response, native, empty=empty):
        (expected,) = native.json()["scores"]
        assert response.json() == pytest.approx(expected, abs=1e-3)


def check_tokenize(client: Client, request: Body, response: httpx.Response) -> None:
    texts, prompt = to_items(request["inputs"]), client.prompt(request)
    if prompt is None:
        assert response.status_code == 422
        return
    joined = [prompt + text if text.strip() else text for text in texts]
    native = client.post("/v1/tokenize", {"inputs": joined})
    if not check_status(response, native, empty=not texts):
        return
    special = request.get("add_special_tokens") is not False
    for text, tokens, result in zip(joined, response.json(), native.json()["results"], strict=True):
        expected = [token for token in result["tokens"] if special or not token["special"]]
        for token, other in zip(tokens, expected, strict=True):
            assert (token["id"], token["text"], token["special"]) == (other["id"], other["text"], other["special"])
            for name, native_name in (("start", "start"), ("stop", "end")):
                offset = len(text[: other[native_name]].encode())
                assert token[name] == (None if other["special"] else offset)


def check_decode(client: Client, request: Body, response: httpx.Response) -> None:
    sequences = to_items(request["ids"])
    if not sequences:
        assert (response.status_code, response.json()["error_type"]) == (400, "Empty")
    elif not all(sequences) or max(map(max, sequences)) >= client.vocab_size:
        assert response.status_code == 422
    else:
        assert response.status_code == 200
        texts = response.json()
        assert len(texts) == len(sequences)
        assert all(isinstance(text, str) for text in texts)
        if request.get("skip_special_tokens") is False:
            assert all(text.count("[CLS]") == ids.count(101) for text, ids in zip(texts, sequences, strict=True))


# TEI's /rerank, /predict and /embed_sparse with models that have the head: the numbers are the native API's.

TOLERANCE = 1e-4
MAX_DOCUMENTS = Settings.model_fields["max_documents"].default
OPTIONS = {
    "raw_scores": optional(st.sampled_from([None, True, False])),
    "truncate": optional(st.sampled_from([None, True, False])),
    "truncation_direction": optional(st.sampled_from([None, "Left", "Right", "left"])),
}
RERANK = body(query=SHORT_TEXTS, texts=st.lists(TEXTS, max_size=4), return_text=optional(st.booleans()), **OPTIONS)
PAIR = st.lists(TEXTS, min_size=1, max_size=2)
HEAD_IDS = st.lists(st.integers(5, 60), min_size=1, max_size=6)
SPARSE = body(
    inputs=st.one_of(TEXTS, HEAD_IDS, st.lists(st.one_of(TEXTS, TEXTS, HEAD_IDS), min_size=1, max_size=4), st.just([])),
    prompt_name=st.sampled_from([...] * 6 + [None, "query", "query", "document", "passage"]),
    truncate=OPTIONS["truncate"],
    truncation_direction=OPTIONS["truncation_direction"],
)
PREDICT = body(inputs=st.one_of(TEXTS, PAIR, st.lists(PAIR, min_size=1, max_size=3)), **OPTIONS)


@dataclass(frozen=True)
class HeadClient:
    """A running service."""

    rest: httpx.Client
    channel: grpc.Channel

    def post(self, path: str, request: Body) -> httpx.Response:
        """Return the response over REST, after a comparison with gRPC if the path is TEI's."""
        response = self.rest.post(path, json=request)
        compare_with_rest(self.channel, path, request, response, TOLERANCE)
        return response


def serve(model: LoadedModel) -> Iterator[HeadClient]:
    with (
        ServiceThread(model) as service,
        httpx.Client(base_url=service.rest, timeout=120) as rest,
        grpc.insecure_channel(service.grpc) as channel,
    ):
        yield HeadClient(rest, channel)


@pytest.fixture(scope="module", params=[CROSS_ENCODER, CLASSIFIER])
def rest(request: pytest.FixtureRequest) -> Iterator[HeadClient]:
    yield from serve(load_kind(request.param))


@pytest.fixture(scope="module", params=[SPLADE, pytest.param(BGE_M3, marks=pytest.mark.slow)])
def sparse(request: pytest.FixtureRequest) -> Iterator[HeadClient]:
    model = load_kind(request.param)
    model = with_manifest(model, with_prompts(model.artifact.manifest, PROMPTS, "document"))
    yield from serve(model)


@product
@given(request=RERANK)
def test_rerank_equals_the_native_api(rest: HeadClient, request: Body) -> None:
    response = rest.post("/rerank", request)
    event(str(response.status_code))
    native = rest.post(
        "/v1/rerank",
        {
            "query": request["query"],
            "documents": [truncate(text, request) for text in request["texts"]],
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
def test_field_of_the_texts_selects_the_api(rest: HeadClient, fields: Body, paths: tuple[str, str]) -> None:
    """The first path is the other API's. With a model of several labels, each API has its error for that."""
    headers = {"x-request-id": "one"}
    response, expected = (rest.rest.post(path, json={"query": "bank"} | fields, headers=headers) for path in paths)
    assert (response.status_code, response.json()) == (expected.status_code, expected.json())


@pytest.mark.parametrize(
    "content", [b'{"query": "bank"}', b"[]", b"{", b'{"query": 1, "texts": ["a"], "documents": ["b"]}']
)
def test_path_decides_when_no_field_selects_an_api(rest: HeadClient, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    native, tei = (rest.rest.post(path, content=content, headers=headers) for path in ("/v1/rerank", "/rerank"))
    assert native.status_code == tei.status_code == (400 if content == b"{" else 422)
    assert set(native.json()["error"]) > {"code", "reason", "field"}
    assert set(tei.json()) == {"error", "error_type"}


def test_root_is_the_route_of_the_kind_of_model(rest: HeadClient) -> None:
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
def test_predict_equals_the_native_api(rest: HeadClient, request: Body) -> None:
    response = rest.post("/predict", request)
    event(str(response.status_code))
    sent, is_batch = request["inputs"], isinstance(request["inputs"], list) and isinstance(request["inputs"][0], list)
    pairs = sent if is_batch else [[sent] if isinstance(sent, str) else sent]
    items = [dict(zip(("text", "pair"), [truncate(text, request) for text in pair], strict=False)) for pair in pairs]
    options = {"raw_scores": request.get("raw_scores") is True, "truncation": truncation(request)}
    native = rest.post("/v1/classify", {"inputs": items, **options})
    if check_same_status(response, native):
        predictions = response.json() if is_batch else [response.json()]
        for found, result in zip(predictions, native.json()["results"], strict=True):
            scores = {label["label"]: label["score"] for label in result["labels"]}
            assert {item["label"]: item["score"] for item in found} == pytest.approx(scores, abs=TOLERANCE)


@product
@given(request=SPARSE)
def test_embed_sparse_equals_the_native_api(sparse: HeadClient, request: Body) -> None:
    response = sparse.post("/embed_sparse", request)
    event(str(response.status_code))
    sent = request["inputs"]
    items = [sent] if isinstance(sent, str) or (sent and isinstance(sent[0], int)) else sent
    if not items:
        assert (response.status_code, response.json()["error_type"]) == (400, "Empty")
        return
    inputs = [truncate(item, request) if isinstance(item, str) else {"token_ids": item} for item in items]
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


def truncate(text: str, request: Body) -> str:
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


def test_ranking_of_a_stream(rest: HeadClient) -> None:
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
