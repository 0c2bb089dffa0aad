"""vLLM's API: combinations of request fields get the native API's numbers, or one of its errors."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from service.engine.model_loader import LoadedModel
from tests.labels import CLASSIFIER, CROSS_ENCODER
from tests.model.retriever_cases import BGE_M3
from tests.operation_requests import SHORT_TEXTS, TEXTS, Body, body, optional
from tests.retrievers import SPLADE
from tests.service.test_tei_products import product
from tests.serving import load_kind, serve

EMBEDDER = "embedding model"
RETRIEVERS = (SPLADE, "stanford", BGE_M3)
TEXT_OR_LIST = st.one_of(TEXTS, st.lists(TEXTS, max_size=3))
OPTIONS = {
    "truncate_prompt_tokens": st.sampled_from([..., ..., None, -1, -1, 64, 3]),
    "use_activation": optional(st.one_of(st.none(), st.booleans())),
    "unknown": optional(st.just([1])),
}
PAIRS: st.SearchStrategy[Any] = st.one_of(
    st.tuples(SHORT_TEXTS, TEXT_OR_LIST),
    st.tuples(st.lists(TEXTS, max_size=2), TEXT_OR_LIST),
    st.lists(st.tuples(TEXTS, SHORT_TEXTS), min_size=2, max_size=3).map(
        lambda pairs: ([first for first, _ in pairs], [second for _, second in pairs])
    ),
)
SCORE = st.builds(lambda pair, options: {"text_1": pair[0], "text_2": pair[1], **options}, PAIRS, body(**OPTIONS))
CLASSIFY = body(input=TEXT_OR_LIST, **OPTIONS)
POOLING = body(
    input=TEXT_OR_LIST,
    task=st.sampled_from([..., None, "embed", "embed", "token_embed", "classify"]),
    normalize=optional(st.one_of(st.none(), st.booleans())),
    dimensions=st.sampled_from([..., ..., ..., None, 5, 0, 1000]),
    encoding_format=optional(st.sampled_from(["float", "base64"])),
    **OPTIONS,
)


@pytest.fixture(
    scope="module",
    params=[EMBEDDER, CROSS_ENCODER, CLASSIFIER, *(pytest.param(kind, marks=pytest.mark.slow) for kind in RETRIEVERS)],
)
def rest(request: pytest.FixtureRequest, model: LoadedModel) -> Iterator[httpx.Client]:
    with serve(model if request.param == EMBEDDER else load_kind(request.param)) as client:
        yield client


@pytest.fixture(scope="module", params=[pytest.param(BGE_M3, marks=pytest.mark.slow)])
def bge(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """A model with vectors for late interaction."""
    with serve(load_kind(request.param)) as client:
        yield client


def function_of(info: dict[str, Any]) -> str:
    """Return how a model without labels scores a pair."""
    functions = [
        name for output, name in (("multi_vector", "maxsim"), ("sparse", "sparse")) if output in info["outputs"]
    ]
    return functions[0] if len(functions) == 1 else "cosine"


@product
@given(request=SCORE, path=st.sampled_from(["/score", "/v1/score"]))
def test_score_equals_the_native_api(rest: httpx.Client, request: Body, path: str) -> None:
    response = rest.post(path, json=request)
    event(str(response.status_code))
    info = rest.get("/v1/model").json()
    options = native_options(info, request)
    first, second = to_list(request["text_1"]), to_list(request["text_2"])
    if options is None or not first or not second or len(first) not in (1, len(second)) or len(info["labels"]) > 1:
        check_error(response)
        return
    first, second = ([cut(text, info, request) for text in texts] for texts in (first, second))
    expected = []
    for index, text in enumerate(second):
        query = first[index if len(first) > 1 else 0]
        if info["labels"]:
            raw = request.get("use_activation") is False
            native = rest.post("/v1/rerank", json={"query": query, "documents": [text], "raw_scores": raw, **options})
        else:
            native_body = {"queries": query, "documents": text, "similarity": function_of(info), **options}
            native = rest.post("/v1/similarity", json=native_body)
        if native.status_code != 200:
            check_same_error(response, native)
            return
        result = native.json()
        expected.append(result["results"][0]["relevance_score"] if info["labels"] else result["scores"][0][0])
    assert response.status_code == 200, response.text
    data = response.json()["data"]
    assert [item["index"] for item in data] == list(range(len(second)))
    assert [item["score"] for item in data] == pytest.approx(expected, abs=2e-3)


@product
@given(request=CLASSIFY)
def test_classify_equals_the_native_api(rest: httpx.Client, request: Body) -> None:
    response = rest.post("/classify", json=request)
    event(str(response.status_code))
    info = rest.get("/v1/model").json()
    options = native_options(info, request)
    if options is None:
        check_error(response)
        return
    raw = request.get("use_activation") is False
    inputs = [cut(text, info, request) for text in to_list(request["input"])]
    native = rest.post("/v1/classify", json={"inputs": inputs, "raw_scores": raw, **options})
    if native.status_code != 200:
        check_same_error(response, native)
        return
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["total_tokens"] == native.json()["usage"]["tokens"]
    for item, result in zip(response.json()["data"], native.json()["results"], strict=True):
        scores = {label["label"]: label["score"] for label in result["labels"]}
        assert item["num_classes"] == len(info["labels"])
        assert item["probs"] == pytest.approx([scores[label] for label in info["labels"]], abs=1e-4)
        assert item["label"] == info["labels"][item["probs"].index(max(item["probs"]))]


@product
@given(request=POOLING)
def test_pooling_equals_the_native_api(rest: httpx.Client, request: Body) -> None:
    check_pooling(rest, request)


@product
@given(request=POOLING)
def test_pooling_of_a_model_with_token_vectors(bge: httpx.Client, request: Body) -> None:
    check_pooling(bge, request)


@pytest.mark.parametrize("field", ["normalize", "use_activation", "softmax"])
def test_raw_token_vectors_are_rejected_with_the_field_of_the_request(bge: httpx.Client, field: str) -> None:
    response = bge.post("/pooling", json={"input": "a", "task": "token_embed", field: False})
    check_error(response)
    assert response.json()["error"]["param"] == field


def check_pooling(rest: httpx.Client, request: Body) -> None:
    """Compare the data of each input with the native API's output."""
    response, info = rest.post("/pooling", json=request), rest.get("/v1/model").json()
    options, texts = native_options(info, request), to_list(request["input"])
    task = request.get("task") or ("classify" if info["labels"] else "token_embed")
    event(f"{task} {response.status_code}")
    raw = False in (request.get("normalize"), request.get("use_activation"))
    is_multi_vector = task == "token_embed" and "multi_vector" in info["outputs"]
    dimensions = request.get("dimensions")
    if options is None or (dimensions is not None and task != "embed") or (is_multi_vector and raw):
        check_error(response)
        return
    options["inputs"] = [cut(text, info, request) for text in texts]
    if task == "classify":
        native = rest.post("/v1/classify", json={"raw_scores": raw, **options})
    else:
        output = {"embed": "pooled", "token_embed": "multi_vector" if is_multi_vector else "tokens"}[task]
        pooled = {"normalize": not raw, "dimensions": dimensions} if task == "embed" else {}
        native = rest.post("/v1/encode", json={"outputs": [output], **pooled, **options})
    if native.status_code != 200:
        check_same_error(response, native)
        return
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["total_tokens"] == native.json()["usage"]["tokens"]
    for index, (item, result) in enumerate(zip(response.json()["data"], native.json()["results"], strict=True)):
        if task == "classify":
            scores = {label["label"]: label["score"] for label in result["labels"]}
            expected = np.array([scores[label] for label in info["labels"]])
        else:
            expected = np.array(result["token_vectors" if output == "tokens" else output])
        if task == "token_embed" and not raw:
            expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
        data = item["data"]
        if request.get("encoding_format") == "base64":
            data = np.frombuffer(base64.b64decode(data), "<f4").reshape(expected.shape)
        assert (item["index"], item["object"]) == (index, "pooling")
        np.testing.assert_allclose(data, expected, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"task": "token_classify"}, "task", 'Use "embed", "token_embed" or "classify"'),
        ({"task": "token_embed", "dimensions": 2}, "dimensions", 'not supported for the task "token_embed"'),
        ({"input": []}, "input", "empty"),
        ({"input": ["a", " "]}, "input[1]", "empty or blank"),
        ({"embed_dtype": "float16"}, "embed_dtype", "float32"),
    ],
)
def test_pooling_errors(rest: httpx.Client, changes: dict[str, Any], param: str, message: str) -> None:
    response = rest.post("/pooling", json={"input": "a"} | changes)
    check_error(response)
    assert response.json()["error"]["param"] == param
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"text_1": ["a", "b"], "text_2": ["c"]}, "text_2", "wrong number of texts (1"),
        ({"text_1": []}, "text_1", "empty"),
        ({"text_1": ["a", " "], "text_2": ["b", "c"]}, "text_1[1]", "empty or blank"),
        ({"text_2": " "}, "text_2", "empty or blank"),
        ({"text_2": "bank " * 300}, "text_2", "or set truncate_prompt_tokens to -1"),
        ({"truncate_prompt_tokens": 3}, "truncate_prompt_tokens", "Use -1 or "),
    ],
)
def test_errors_have_vllm_names(rest: httpx.Client, changes: dict[str, Any], param: str, message: str) -> None:
    if len(rest.get("/v1/model").json()["labels"]) > 1:
        return  # a classifier scores no pairs
    response = rest.post("/score", json={"text_1": "a", "text_2": ["b", "c"]} | changes)
    check_error(response)
    assert response.json()["error"]["param"] == param
    assert message in response.json()["error"]["message"]


def to_list(texts: Any) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def native_options(info: Any, request: Body) -> Body | None:
    """Return the truncation under the native API's name; None for another limit than the model's."""
    limit = request.get("truncate_prompt_tokens")
    if limit not in (None, -1, info["max_input_tokens"]):
        return None
    return {"truncation": "error" if limit is None else "right"}


def cut(text: str, info: Any, request: Body) -> str:
    """Return the part of a text within the character limit, if it may be truncated."""
    limit = info["limits"]["max_input_characters"]
    return text if request.get("truncate_prompt_tokens") is None else text[:limit]


def check_error(response: httpx.Response) -> None:
    assert response.status_code in (400, 413), response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["type"]) == (response.status_code, "BadRequestError")
    assert not any(name in error["message"] for name in ("inputs", "queries", "documents"))


def check_same_error(response: httpx.Response, native: httpx.Response) -> None:
    check_error(response)
    assert response.status_code == (400 if native.status_code == 422 else native.status_code)


def test_response_has_an_id_and_a_time(rest: httpx.Client) -> None:
    path, request = "/score", {"text_1": "a", "text_2": "b"}
    if len(rest.get("/v1/model").json()["labels"]) > 1:
        path, request = "/classify", {"input": "a"}
    response = rest.post(path, json=request, headers={"x-request-id": "one"}).json()
    assert (response["id"], response["object"]) == ("one", "list")
    assert response["created"] > 1_700_000_000
    assert response["usage"]["total_tokens"] == response["usage"]["prompt_tokens"] > 0
    other = rest.post(path, json=request | {"model": "other"})
    assert (other.status_code, other.json()["error"]["type"]) == (404, "NotFoundError")
