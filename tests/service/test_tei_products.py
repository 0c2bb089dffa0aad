"""TEI API: combinations of request fields get the native API's numbers, or one of TEI's errors, over REST and gRPC.

`FUZZ_EXAMPLES` sets the number of examples.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from service.engine.model_loader import LoadedModel
from tests.conftest import EXAMPLES
from tests.manifests import with_manifest, with_prompts
from tests.operation_requests import SHORT_TEXTS, TEXTS, body, optional
from tests.response_contract import assert_close, to_array
from tests.serving import ServiceThread
from tests.tei_messages import compare_with_rest

PROMPTS = {"query": "find: ", "document": "text: "}
ERROR_TYPES = {
    400: {"Empty", "Validation"}, 413: {"Validation"}, 422: {"Validation"}, 424: {"Backend"},
}  # fmt: skip
STATUS = {404: 422}
"""Maps the native API's statuses to TEI's, where they differ."""
HEADS = ("/embed_sparse", "/rerank", "/predict")
Body = dict[str, Any]


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
    if path in HEADS:  # test_tei_heads.py has models with heads
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
