"""Vectors in an encode response against their definitions in docs/api.md, and the estimated response size."""

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attendant_client.types import Array, EncodeRequest, EncodeResult, Input
from numpy.typing import NDArray

from service.engine.model_loader import LoadedModel
from service.errors import InvalidArgument, ResponseTooLarge
from service.operations.encode import prepare_input, response_bytes, suggest_smaller_vectors
from service.operations.inputs import JSON_VALUE_BYTES, RESULT_BYTES, Call, Wire, tokenizer_inputs
from service.spelling import Remedy
from tests.service.conftest import GOLDEN, ServiceHarness, cosine, encode, open_harness

TEXT = "He cashed a re-issued cheque at the bank."
ALL_OUTPUTS = ("pooled", "tokens", "words", "static")
INPUTS = (Input(TEXT), Input(GOLDEN), Input("a pair 😀", "of \u0001 texts — 漢字"))

PROMPT = "x" * 10_000
"""One unknown word, and so one token."""


def values(array: Array | None) -> NDArray[Any]:
    assert array is not None
    return array


async def encode_one(harness: ServiceHarness, *inputs: str | Input, **fields: Any) -> EncodeResult:
    return (await encode(harness.engine, *(inputs or (TEXT,)), **fields)).results[0]


async def test_word_vectors_are_means_of_their_tokens(harness: ServiceHarness) -> None:
    result = await encode_one(harness, outputs=("tokens", "words"))
    assert result.tokens is not None
    assert result.words is not None
    for index, vector in enumerate(values(result.word_vectors)):
        tokens = [position for position, token in enumerate(result.tokens) if token.word_index == index]
        np.testing.assert_allclose(vector, values(result.token_vectors)[tokens].mean(axis=0), rtol=1e-4, atol=1e-6)
    assert len(result.words) == len(values(result.word_vectors)) == 9


async def test_span_vectors_are_means_of_their_tokens(harness: ServiceHarness) -> None:
    """If a span covers part of a token, the whole token counts."""
    item = Input(TEXT, spans=((0, 9), (4, 5)))
    result = await encode_one(harness, item, outputs=("tokens", "spans"))
    tokens = values(result.token_vectors)
    assert result.words is None
    first = tokens[1:4] if result.tokens is not None and result.tokens[3].end <= 9 else tokens[1:3]
    np.testing.assert_allclose(values(result.span_vectors)[0], first.mean(axis=0), rtol=1e-4, atol=1e-6)
    assert values(result.span_vectors).shape == (2, 384)


async def test_static_vectors_are_rows_of_the_embedding_table(harness: ServiceHarness, model: LoadedModel) -> None:
    """Static vectors need no inference."""
    result = await encode_one(harness, outputs=("static",))
    assert result.tokens is not None
    assert model.static is not None
    np.testing.assert_array_equal(values(result.static_vectors), model.static[[token.id for token in result.tokens]])
    assert harness.batches_run == 0


async def test_dimensions_are_truncated_before_normalization(harness: ServiceHarness) -> None:
    full, truncated = await encode_one(harness), await encode_one(harness, dimensions=16)
    raw = await encode_one(harness, dimensions=16, normalize=False)
    expected = values(full.pooled)[:16] / np.linalg.norm(values(full.pooled)[:16])
    np.testing.assert_allclose(values(truncated.pooled), expected, rtol=1e-4, atol=1e-5)
    assert np.linalg.norm(values(raw.pooled)) != pytest.approx(1, abs=1e-3)
    assert cosine(values(raw.pooled), expected) > 0.99999


async def test_stack_adds_a_layer_axis_except_to_static_vectors(harness: ServiceHarness) -> None:
    last = await encode_one(harness, outputs=ALL_OUTPUTS)
    stacked = await encode_one(harness, outputs=ALL_OUTPUTS, layer_reduce="stack")
    for name in ("pooled", "token_vectors", "word_vectors"):
        assert getattr(stacked, name).shape == (1, *getattr(last, name).shape)
    assert values(stacked.static_vectors).shape == values(last.static_vectors).shape


@pytest.mark.parametrize("field", ["pooling", "normalize"])
async def test_pooling_and_normalize_override_the_model_defaults(harness: ServiceHarness, field: str) -> None:
    fields: dict[str, Any] = {"pooling": "cls"} if field == "pooling" else {"normalize": False}
    result = await encode_one(harness, outputs=("pooled", "tokens"), **fields)
    tokens = values(result.token_vectors)
    expected = tokens[0] / np.linalg.norm(tokens[0]) if field == "pooling" else tokens.mean(axis=0)
    np.testing.assert_allclose(values(result.pooled), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("spans", "reason", "message"),
    [
        (((2, 4),), "SPAN_EMPTY", "inputs[0].spans[0]: no token is assigned to this span. Move or remove the span."),
        (
            ((0, 1), (1400, 1405)),
            "SPAN_TRUNCATED",
            "inputs[0].spans[1]: removed by truncation. Shorten the text or remove the span.",
        ),
    ],
)
async def test_spans_without_tokens_are_rejected(
    harness: ServiceHarness, spans: tuple[tuple[int, int], ...], reason: str, message: str
) -> None:
    item = Input("ab   cd " + "word " * 300, spans=spans)
    with pytest.raises(InvalidArgument) as raised:
        await encode(harness.engine, item, outputs=("spans",), truncation="right")
    assert (raised.value.reason, raised.value.message) == (reason, message)
    assert harness.batches_run == 0


def estimate(model: LoadedModel, request: EncodeRequest, wire: Wire = "json") -> int:
    sequences = model.tokenizer.encode(tokenizer_inputs(request.inputs))
    pairs = zip(request.inputs, sequences, strict=True)
    prepared = [
        prepare_input(item, tokens, request, model.tokenizer, model.artifact.manifest, "") for item, tokens in pairs
    ]
    return response_bytes(prepared, request, Call(wire=wire), model.artifact.manifest)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "ubinary"])
def test_estimate_is_exact_for_binary_and_base64(model: LoadedModel, dtype: Any) -> None:
    """For JSON, the estimate is an upper bound per value."""
    inputs = (Input(GOLDEN),)
    size = {"float32": 1536, "float16": 768, "int8": 384, "ubinary": 48}[dtype]
    sizes: tuple[tuple[Wire, int], ...] = (
        ("binary", size),
        ("base64", len(base64.b64encode(bytes(size)))),
        ("json", 384 * JSON_VALUE_BYTES[dtype] if dtype != "ubinary" else 48 * JSON_VALUE_BYTES[dtype]),
    )
    for wire, expected in sizes:
        request = EncodeRequest(inputs, dtype=dtype)
        array_bytes = estimate(model, request, wire) - RESULT_BYTES
        assert array_bytes == expected or (wire == "json" and array_bytes >= expected)


@pytest.mark.parametrize("encoding", ["float", "base64"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("outputs", [["pooled"], ["tokens"], ["words"], ["static"], list(ALL_OUTPUTS)])
async def test_response_is_at_most_as_large_as_the_estimate(
    harness: ServiceHarness, model: LoadedModel, encoding: str, dtype: Any, outputs: list[Any]
) -> None:
    """The texts contain characters that JSON escapes."""
    inputs = [{"text": item.text, "pair": item.pair} for item in INPUTS]
    body = {"inputs": inputs, "outputs": outputs, "dtype": dtype, "encoding_format": encoding}
    response = await harness.post("/v1/encode", body, **{"accept-encoding": "identity"})
    wire: Any = "json" if encoding == "float" else "base64"
    bound = estimate(model, EncodeRequest(INPUTS, outputs=tuple(outputs), dtype=dtype), wire)
    assert len(response.content) <= bound
    assert wire == "json" or bound <= 1.2 * len(response.content) + 3 * RESULT_BYTES


@pytest.fixture
async def limited_harness(model: LoadedModel) -> AsyncIterator[ServiceHarness]:
    """A harness whose response limit is the estimate for one binary embedding."""
    limit = estimate(model, EncodeRequest((Input(GOLDEN),)), "binary")
    async with open_harness(model, max_response_bytes=limit) as opened:
        yield opened


async def test_response_over_the_limit_is_rejected_before_inference(limited_harness: ServiceHarness) -> None:
    """A response exactly at the limit is accepted."""
    await encode(limited_harness.engine, GOLDEN, wire="binary")
    runs = limited_harness.batches_run
    for fields in ({"wire": "base64"}, {"outputs": ("pooled", "words"), "wire": "binary"}):
        with pytest.raises(ResponseTooLarge, match="limit 2048"):
            await encode(limited_harness.engine, GOLDEN, **fields)
    assert limited_harness.batches_run == runs == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("encode", {"inputs": GOLDEN, "prompt": PROMPT}),
        ("encode", {"inputs": GOLDEN, "prompt": PROMPT, "outputs": ["words"]}),
        ("encode", {"inputs": GOLDEN, "prompt": PROMPT, "chunks": {}}),
        ("similarity", {"queries": [GOLDEN], "documents": ["bank"], "query_prompt": PROMPT}),
        ("similarity", {"queries": [GOLDEN], "documents": ["bank"], "document_prompt": PROMPT, "explain": True}),
    ],
)
async def test_prompts_that_a_response_repeats_count_against_its_limit(
    model: LoadedModel, path: str, body: dict[str, Any]
) -> None:
    async with open_harness(model, max_response_bytes=100_000) as harness:
        response = await harness.post(f"/v1/{path}", body)
        assert response.json()["error"]["reason"] == "RESPONSE_TOO_LARGE"
        fields = {name: "x" if value == PROMPT else value for name, value in body.items()}
        assert (await harness.post(f"/v1/{path}", fields)).status_code == 200


@pytest.mark.parametrize(
    ("fields", "limit", "text", "changes"),
    [
        ({"wire": "json"}, 3000, "Send a shorter text", [{"encoding_format": "base64"}]),
        ({"wire": "base64"}, 2000, "Send a shorter text", [{"dtype": "float16"}]),
        ({"wire": "base64", "layers": (0, 1, 2)}, 3000, "Request one layer", []),
        ({"wire": "base64", "layers": (0, 1, 2)}, 100, "Request fewer layers", []),
        ({"wire": "base64", "dtype": "float16"}, 100, "Send a shorter text", []),
    ],
)
def test_suggested_changes_are_sufficient(
    model: LoadedModel, fields: dict[str, Any], limit: int, text: str, changes: list[dict[str, Any]]
) -> None:
    call = Call(wire=fields["wire"])
    request = EncodeRequest((Input(GOLDEN),), **{name: value for name, value in fields.items() if name != "wire"})
    manifest = model.artifact.manifest
    (tokens,) = model.tokenizer.encode(tokenizer_inputs(request.inputs))
    prepared = [prepare_input(request.inputs[0], tokens, request, model.tokenizer, manifest, "inputs[0]")]
    assert suggest_smaller_vectors(prepared, request, call, manifest, limit) == Remedy(text, changes)
    one_layer = [{"layers": request.layers[:1]}] if text == "Request one layer" else []
    for change in [*changes, *one_layer]:
        wire = call.wire if change.pop("encoding_format", None) is None else "base64"
        assert response_bytes(prepared, replace(request, **change), Call(wire=wire), manifest) <= limit
