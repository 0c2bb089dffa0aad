"""The OpenAI door, through OpenAI's own client."""

import base64
from collections.abc import Iterator

import httpx
import numpy as np
import openai
import pytest

from tests.conftest import RunningServer
from tests.service.conftest import GOLDEN, cosine

MODEL = "all-MiniLM-L6-v2"


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.rest}/v1", api_key="none", max_retries=0) as opened:
        yield opened


@pytest.fixture
def golden(rest: httpx.Client) -> list[float]:
    """The native door's vector."""
    found: list[float] = rest.post("/v1/encode", json={"inputs": GOLDEN}).json()["results"][0]["pooled"]
    return found


def test_default_embedding_is_the_native_one(client: openai.OpenAI, golden: list[float]) -> None:
    """The client asks for base64 and decodes it."""
    found = client.embeddings.create(model=MODEL, input=GOLDEN)
    np.testing.assert_array_equal(np.asarray(found.data[0].embedding, np.float32), np.asarray(golden, np.float32))
    assert (found.model, found.usage.prompt_tokens, found.usage.total_tokens) == (MODEL, 5, 5)
    assert (found.object, found.data[0].object, found.data[0].index) == ("list", "embedding", 0)


def test_floats(client: openai.OpenAI, golden: list[float]) -> None:
    """The same numbers."""
    found = client.embeddings.create(model=MODEL, input=[GOLDEN], encoding_format="float")
    np.testing.assert_array_equal(np.asarray(found.data[0].embedding, np.float32), np.asarray(golden, np.float32))


def test_base64_on_the_wire(rest: httpx.Client, golden: list[float]) -> None:
    """A bare string of little-endian float32."""
    body = {"model": MODEL, "input": GOLDEN, "encoding_format": "base64"}
    (item,) = rest.post("/v1/embeddings", json=body).json()["data"]
    found = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
    np.testing.assert_array_equal(found, np.asarray(golden, np.float32))


def test_dimensions(client: openai.OpenAI, golden: list[float]) -> None:
    """The leading components, normalised."""
    found = client.embeddings.create(model=MODEL, input=GOLDEN, dimensions=64).data[0].embedding
    assert len(found) == 64
    assert cosine(found, golden[:64]) > 0.99999
    assert np.linalg.norm(found) == pytest.approx(1, abs=1e-4)


def test_token_ids(client: openai.OpenAI, golden: list[float]) -> None:
    """One list of ids, or several."""
    ids = [2769, 2924, 7502]
    one = client.embeddings.create(model=MODEL, input=ids)
    two = client.embeddings.create(model=MODEL, input=[ids, [2924]])
    np.testing.assert_array_equal(np.asarray(one.data[0].embedding, np.float32), np.asarray(golden, np.float32))
    assert [len(item.embedding) for item in two.data] == [384, 384]
    assert cosine(two.data[0].embedding, golden) > 0.9999


def test_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    """Its own kind of error."""
    with pytest.raises(openai.NotFoundError) as refused:
        client.embeddings.create(model="text-embedding-3-small", input="a")
    assert refused.value.code == "model_not_found"


@pytest.mark.parametrize("given", ["", [], [""], [[]], "word " * 300, [-1], [30522]])
def test_bad_inputs(client: openai.OpenAI, given: list[str]) -> None:
    """400 with OpenAI's error body, whose param is the field."""
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model=MODEL, input=given)
    assert (refused.value.type, refused.value.param) == ("invalid_request_error", "input")
    assert isinstance(refused.value.body, dict)
    assert set(refused.value.body) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("fields", [{"input": 5}, {"input": "a", "model": 5}, {"input": ["a", 5]}, {"model": MODEL},
                                    {"input": "a", "dimensions": 0}, {"input": "a", "dimensions": 385},
                                    {"input": "a", "encoding_format": "hex"}])  # fmt: skip
def test_bad_fields_are_named(rest: httpx.Client, fields: dict[str, object]) -> None:
    """400, and `param` says which."""
    answer = rest.post("/v1/embeddings", json={"model": MODEL, **fields})
    error = answer.json()["error"]
    others = [name for name in ("dimensions", "encoding_format", "model") if fields.get(name, MODEL) != MODEL]
    blamed = others[0] if others else "input"
    assert (answer.status_code, error["param"]) == (400, blamed), error


def test_body_is_rejected_when_not_json(rest: httpx.Client) -> None:
    """OpenAI's error body all the same."""
    answer = rest.post("/v1/embeddings", content=b"{", headers={"content-type": "application/json"})
    assert (answer.status_code, set(answer.json()["error"])) == (400, {"message", "type", "param", "code"})


def test_models(client: openai.OpenAI) -> None:
    """One is listed, and can be asked for by name; another is not found."""
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_input_limit_is_2048(client: openai.OpenAI) -> None:
    """OpenAI's own limit, not the native door's."""
    assert len(client.embeddings.create(model=MODEL, input=["a"] * 2048).data) == 2048
    with pytest.raises(openai.BadRequestError, match="input: too many items \\(2049, limit 2048\\)"):
        client.embeddings.create(model=MODEL, input=["a"] * 2049)


def test_too_long_input_error_names_the_remedy_of_this_api(client: openai.OpenAI) -> None:
    """Truncation is not among it."""
    with pytest.raises(
        openai.BadRequestError, match=r"too long \(302 tokens, limit 256\)\. Split it, or use /v1/encode"
    ):
        client.embeddings.create(model="all-MiniLM-L6-v2", input="word " * 300)


def test_null_encoding_is_the_default(rest: httpx.Client, golden: list[float]) -> None:
    """As for the other fields that may be left out."""
    body = {"model": "all-MiniLM-L6-v2", "input": GOLDEN, "encoding_format": None}
    assert rest.post("/v1/embeddings", json=body).json()["data"][0]["embedding"] == pytest.approx(golden, abs=1e-6)


def test_precision_is_returned(rest: httpx.Client) -> None:
    """In a header, since the body is not ours to change."""
    answer = rest.post("/v1/embeddings", json={"model": "all-MiniLM-L6-v2", "input": "a"})
    assert answer.headers["x-attendant-precision"] == rest.get("/v1/model").json()["precision"]
