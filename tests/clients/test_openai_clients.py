"""OpenAI clients from PyPI get the same numbers as the native API."""

from pathlib import Path

import httpx
import pytest

from tests.clients.conftest import CheckArrays, native
from tests.clients.environments import run_client
from tests.conftest import start_server, stop_server

pytestmark = pytest.mark.slow

MODEL = "all-MiniLM-L6-v2"
TEXTS = ["money bank grows", "the river bank, déjà vu", "word " * 200]
KEY = "a-key-of-the-test"

OPENAI = """
import asyncio, openai

async def encode_async():
    async with openai.AsyncOpenAI(base_url=f"{rest}/v1", api_key="none") as opened:
        return [item.embedding for item in (await opened.embeddings.create(model=model, input=texts)).data]

model = "all-MiniLM-L6-v2"
def create(**options):
    return [item.embedding for item in client.embeddings.create(**{"model": model, "input": texts} | options).data]

results = {
    "snippet": vectors,
    "float": create(encoding_format="float"),
    "raw_base64": client.embeddings.create(model=model, input=texts, encoding_format="base64").data[0].embedding,
    "one": create(input=texts[0]),
    "dimensions": create(dimensions=64),
    "async": asyncio.run(encode_async()),
    "usage": response.usage.to_dict(),
    "response": [response.object, response.model, [[item.object, item.index] for item in response.data]],
    "models": [item.to_dict() for item in client.models.list()],
    "model": client.models.retrieve(model).to_dict(),
}
strict = client.with_options(max_retries=0)
for name, call in (
    ("empty", lambda: strict.embeddings.create(model=model, input=["a", ""])),
    ("long", lambda: strict.embeddings.create(model=model, input="word " * 300)),
    ("dimensions_error", lambda: strict.embeddings.create(model=model, input="a", dimensions=500)),
    ("other_model", lambda: strict.embeddings.create(model="text-embedding-3-small", input="a")),
    ("other_model_retrieved", lambda: strict.models.retrieve("text-embedding-3-small")),
    ("unknown_field", lambda: strict.embeddings.create(
        model=model, input="a", extra_body={"no": 1}, extra_headers={"x-attendant-strict": "1"})),
):
    try:
        call()
    except openai.APIStatusError as error:
        results[name] = [type(error).__name__, error.status_code, error.param, error.code, error.type]
send(results)
"""
OPENAI_KEY = """
import openai

results = {"snippet": None}
for name, key in (("valid", arguments["key"]), ("invalid", "wrong")):
    opened = OpenAI(base_url=f"{arguments['locked']}/v1", api_key=key, max_retries=0)
    for method, call in (
        ("create", lambda: opened.embeddings.create(model="all-MiniLM-L6-v2", input=texts).data[0].embedding),
        ("list", lambda: [item.id for item in opened.models.list()]),
    ):
        try:
            results[f"{name}_{method}"] = call()
        except openai.APIStatusError as error:
            results[f"{name}_{method}"] = [type(error).__name__, error.status_code, error.code]
send(results)
"""
LANGCHAIN = """
import asyncio
import langchain_openai.embeddings.base as base
import tiktoken

# A vocabulary of bytes stands for OpenAI's, which tiktoken downloads.
pattern = "(?s)."
tokens = {bytes([value]): value for value in range(256)}
stand_in = tiktoken.Encoding("bytes", pat_str=pattern, mergeable_ranks=tokens, special_tokens={})
tiktoken.encoding_for_model = tiktoken.get_encoding = lambda name: stand_in

options = {"model": "all-MiniLM-L6-v2", "base_url": f"{rest}/v1", "api_key": "none"}
short = OpenAIEmbeddings(**options, check_embedding_ctx_length=False, dimensions=64)
results = {
    "snippet": vectors,
    "one": [embeddings.embed_query(texts[0])],
    "async": asyncio.run(embeddings.aembed_documents(texts)),
    "dimensions": short.embed_documents(texts),
}
try:
    OpenAIEmbeddings(**options).embed_documents(texts)
except base.openai.APIStatusError as error:
    results["token_ids"] = [type(error).__name__, error.status_code, error.param, error.code, str(error)]
send(results)
"""
INFINITY = """
import asyncio
from infinity_client.types import UNSET

client = Client(base_url=f"{rest}/v1")

def make_body(value, **options):
    options = {"dimensions": UNSET, "modality": UNSET} | options
    return OpenAIEmbeddingInputText(input_=value, model="all-MiniLM-L6-v2", **options)

def to_vectors(result):
    return [item.embedding for item in result.data]

invalid = embeddings.sync_detailed(client=client, body=make_body(["a", ""]))
send({
    "snippet": vectors,
    "one": to_vectors(embeddings.sync(client=client, body=make_body(texts[0]))),
    "async": to_vectors(asyncio.run(embeddings.asyncio(client=client, body=make_body(texts)))),
    "dimensions": to_vectors(embeddings.sync(client=client, body=make_body(texts, dimensions=64))),
    "usage": embeddings.sync(client=client, body=make_body(texts)).usage.to_dict(),
    "invalid": [invalid.status_code, json.loads(invalid.content)["error"]["param"]],
})
"""


def token_count(rest: httpx.Client) -> int:
    results = rest.post("/v1/tokenize", json={"inputs": TEXTS}).raise_for_status().json()["results"]
    return sum(len(result["tokens"]) for result in results)


def test_openai(rest: httpx.Client, check_arrays: CheckArrays, tmp_path: Path) -> None:
    results = run_client("openai", OPENAI, tmp_path, rest, texts=TEXTS)
    expected = native(rest, TEXTS)
    for name in ("snippet", "float", "async"):
        check_arrays(results[name], expected)
    check_arrays(results["one"], expected[:1])
    check_arrays(results["dimensions"], native(rest, TEXTS, dimensions=64))
    raw = {"data": results["raw_base64"], "shape": [len(expected[0])], "dtype": "float32"}
    check_arrays([raw], expected[:1])
    count = token_count(rest)
    assert results["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert results["response"] == ["list", MODEL, [["embedding", index] for index in range(len(TEXTS))]]
    record = {"id": MODEL, "object": "model", "created": 0, "owned_by": "attendant"}
    assert results["models"] == [results["model"]]
    assert results["model"].items() >= record.items()
    invalid = ("BadRequestError", 400)
    kind = "invalid_request_error"
    assert results["empty"] == [*invalid, "input[1]", "empty", kind]
    assert results["long"] == [*invalid, "input[0]", "too_long", kind]
    assert results["dimensions_error"][:3] == [*invalid, "dimensions"]
    assert results["unknown_field"] == [*invalid, "no", "unknown_field", kind]
    not_found = ["NotFoundError", 404, "model", "model_not_found", kind]
    assert (results["other_model"], results["other_model_retrieved"]) == (not_found, not_found)


def test_openai_with_api_keys(
    rest: httpx.Client, check_arrays: CheckArrays, default_artifact: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    locked = start_server(model_dir=default_artifact, api_keys_file=keys)
    try:
        results = run_client("openai", OPENAI_KEY, tmp_path, rest, texts=TEXTS, locked=locked.rest, key=KEY)
    finally:
        assert stop_server(locked) == 0
    check_arrays([results["valid_create"]], native(rest, TEXTS[:1]))
    assert results["valid_list"] == [MODEL]
    for name in ("invalid_create", "invalid_list"):
        assert results[name] == ["AuthenticationError", 401, "invalid_api_key"]


def test_langchain_openai(rest: httpx.Client, check_arrays: CheckArrays, tmp_path: Path) -> None:
    """By default, LangChain sends token ids from OpenAI's vocabulary. The resulting error must name the option."""
    results = run_client("langchain-openai", LANGCHAIN, tmp_path, rest, texts=TEXTS)
    expected = native(rest, TEXTS)
    check_arrays(results["snippet"], expected)
    check_arrays(results["one"], expected[:1])
    check_arrays(results["async"], expected)
    check_arrays(results["dimensions"], native(rest, TEXTS, dimensions=64))
    *fields, message = results["token_ids"]
    assert fields == ["BadRequestError", 400, "input", "token_ids_disabled"]
    assert "with LangChain set check_embedding_ctx_length=False" in message


def test_infinity_client(rest: httpx.Client, check_arrays: CheckArrays, tmp_path: Path) -> None:
    results = run_client("infinity-client", INFINITY, tmp_path, rest, texts=TEXTS)
    expected = native(rest, TEXTS)
    check_arrays(results["snippet"], expected)
    check_arrays(results["one"], expected[:1])
    check_arrays(results["async"], expected)
    check_arrays(results["dimensions"], native(rest, TEXTS, dimensions=64))
    assert results["usage"] == {"prompt_tokens": token_count(rest), "total_tokens": token_count(rest)}
    assert results["invalid"] == [400, "input[1]"]
