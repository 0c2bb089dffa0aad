"""Assembly: the vectors are what API.md defines, and the size that was promised is the size that is sent."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model.tokenizer import Source
from service.engine.encode.response import JSON_VALUE_BYTES, RESULT_BYTES, prepare_input, response_bytes
from service.engine.model_loader import LoadedModel
from service.engine.schema.encode import Array, EncodeRequest, EncodeResult, Input
from service.errors import InvalidArgument, ResponseTooLarge
from tests.service.conftest import GOLDEN, House, cosine, encode, open_house

TEXT = "He cashed a re-issued cheque at the bank."
ALL_FLAT = ("pooled", "tokens", "words", "static")
SOURCES = (Source(TEXT), Source(GOLDEN), Source("a pair 😀", "of \u0001 texts — 漢字"))


def values(array: Array | None) -> NDArray[Any]:
    assert array is not None
    return array.values


async def one(house: House, *inputs: str | Input, **fields: Any) -> EncodeResult:
    return (await encode(house.engine, *(inputs or (TEXT,)), **fields)).results[0]


async def test_token_vectors_pool_to_the_pooled_vector(house: House) -> None:
    """Mean over all tokens, special ones included, then length 1."""
    found = await one(house, outputs=("pooled", "tokens"))
    assert cosine(values(found.token_vectors).mean(axis=0), values(found.pooled)) > 0.999999
    assert np.linalg.norm(values(found.pooled)) == pytest.approx(1, abs=1e-5)


async def test_word_vectors_are_means_of_their_tokens(house: House) -> None:
    """Of the tokens that overlap them."""
    found = await one(house, outputs=("tokens", "words"))
    assert found.tokens is not None
    assert found.words is not None
    for index, vector in enumerate(values(found.word_vectors)):
        own = [at for at, token in enumerate(found.tokens) if token.word == index]
        np.testing.assert_allclose(vector, values(found.token_vectors)[own].mean(axis=0), rtol=1e-4, atol=1e-6)
    assert len(found.words) == len(values(found.word_vectors)) == 9


async def test_span_vectors_are_means_of_their_tokens(house: House) -> None:
    """A span over half a token takes the whole token in."""
    item = Input(Source(TEXT), ((0, 9), (4, 5)))
    found = await one(house, item, outputs=("tokens", "spans"))
    tokens = values(found.token_vectors)
    assert found.words is None
    first = tokens[1:4] if found.tokens is not None and found.tokens[3].end <= 9 else tokens[1:3]
    np.testing.assert_allclose(values(found.span_vectors)[0], first.mean(axis=0), rtol=1e-4, atol=1e-6)
    assert values(found.span_vectors).shape == (2, 384)


async def test_words_and_spans_do_not_mix(house: House) -> None:
    """A span over a word has the word's vector, and each list has its own length."""
    found = await one(house, Input(Source(TEXT), ((36, 40),)), outputs=("words", "spans"))
    assert found.words is not None
    (index,) = [at for at, word in enumerate(found.words) if word.text == "bank"]
    np.testing.assert_array_equal(values(found.span_vectors)[0], values(found.word_vectors)[index])


async def test_static_vectors_are_rows_of_the_embedding_table(house: House, model: LoadedModel) -> None:
    """And need no run of the model."""
    found = await one(house, outputs=("static",))
    assert found.tokens is not None
    np.testing.assert_array_equal(values(found.static_vectors), model.static[[token.id for token in found.tokens]])
    assert house.batches_run == 0


async def test_dimensions_cut_before_normalising(house: House) -> None:
    """The first n components, with length 1 again unless told otherwise."""
    whole, cut = await one(house), await one(house, dimensions=16)
    raw = await one(house, dimensions=16, normalize=False)
    expected = values(whole.pooled)[:16] / np.linalg.norm(values(whole.pooled)[:16])
    np.testing.assert_allclose(values(cut.pooled), expected, rtol=1e-4, atol=1e-5)
    assert np.linalg.norm(values(raw.pooled)) != pytest.approx(1, abs=1e-3)
    assert cosine(values(raw.pooled), expected) > 0.99999


async def test_narrow_pooled_vectors(house: House) -> None:
    """int8 is round(127 x), ubinary the signs, D/8 bytes; float16 halves."""
    unit = values((await one(house)).pooled)
    small = values((await one(house, dtype="int8")).pooled)
    assert np.abs(small - np.round(unit * 127)).max() <= 1  # bfloat16 may round otherwise in other company
    bits = values((await one(house, dtype="ubinary")).pooled)
    assert bits.dtype == np.uint8
    assert bits.shape == (48,)
    assert (np.unpackbits(bits) == (unit > 0)).mean() > 0.99
    assert values((await one(house, dtype="float16")).pooled).dtype == np.float16


async def test_stack_adds_an_axis_of_layers(house: House) -> None:
    """To everything but the static vectors, which have no layer."""
    flat = await one(house, outputs=ALL_FLAT)
    stacked = await one(house, outputs=ALL_FLAT, layer_reduce="stack")
    for name in ("pooled", "token_vectors", "word_vectors"):
        assert getattr(stacked, name).shape == (1, *getattr(flat, name).shape)
    assert stacked.static_vectors is not None
    assert stacked.static_vectors.shape == values(flat.static_vectors).shape


@pytest.mark.parametrize("field", ["pooling", "normalize"])
async def test_the_callers_pooling_and_norm_win(house: House, field: str) -> None:
    """Over the model's own."""
    fields: dict[str, Any] = {"pooling": "cls"} if field == "pooling" else {"normalize": False}
    found = await one(house, outputs=("pooled", "tokens"), **fields)
    tokens = values(found.token_vectors)
    expected = tokens[0] / np.linalg.norm(tokens[0]) if field == "pooling" else tokens.mean(axis=0)
    np.testing.assert_allclose(values(found.pooled), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("spans", "reason", "message"),
    [
        (((2, 4),), "span_empty", "inputs[0].spans[0] covers no token, only blanks."),
        (((0, 1), (1400, 1405)), "span_cut_off", "inputs[0].spans[1] was wholly cut off by truncation."),
    ],
)
async def test_spans_that_nothing_is_left_of(
    house: House, spans: tuple[tuple[int, int], ...], reason: str, message: str
) -> None:
    """Blanks alone, and what truncation took."""
    item = Input(Source("ab   cd " + "word " * 300), spans)
    with pytest.raises(InvalidArgument) as refused:
        await encode(house.engine, item, outputs=("spans",), truncation="right")
    assert (refused.value.reason, refused.value.message) == (reason, message)
    assert house.batches_run == 0


def promised(model: LoadedModel, request: EncodeRequest) -> int:
    tokens = model.tokenizer.encode([item.source for item in request.inputs])
    pairs = zip(request.inputs, tokens, strict=True)
    prepared = [prepare_input(item, found, request, model.tokenizer, "") for item, found in pairs]
    return response_bytes(prepared, request, model.artifact.manifest)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "ubinary"])
def test_arrays_are_measured_exactly(model: LoadedModel, dtype: Any) -> None:
    """In binary and base64; JSON has a bound for a value."""
    inputs = (Input(Source(GOLDEN)),)
    size = {"float32": 1536, "float16": 768, "int8": 384, "ubinary": 48}[dtype]
    for wire, expected in (
        ("binary", size),
        ("base64", len(base64.b64encode(bytes(size)))),
        ("json", 384 * JSON_VALUE_BYTES[dtype] if dtype != "ubinary" else 48 * JSON_VALUE_BYTES[dtype]),
    ):
        request = EncodeRequest(inputs, dtype=dtype, wire=wire)  # type: ignore[arg-type]
        found = promised(model, request) - RESULT_BYTES
        assert found == expected or (wire == "json" and found >= expected)


@pytest.mark.parametrize("encoding", ["float", "base64"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("outputs", [["pooled"], ["tokens"], ["words"], ["static"], list(ALL_FLAT)])
async def test_no_answer_is_larger_than_promised(
    house: House, model: LoadedModel, encoding: str, dtype: Any, outputs: list[Any]
) -> None:
    """Really rendered, odd characters and all."""
    inputs = [{"text": source.text, "pair": source.pair} for source in SOURCES]
    body = {"inputs": inputs, "outputs": outputs, "dtype": dtype, "encoding": encoding}
    answer = await house.post("/v1/encode", body, **{"accept-encoding": "identity"})
    wire: Any = "json" if encoding == "float" else "base64"
    asked = tuple(Input(source) for source in SOURCES)
    bound = promised(model, EncodeRequest(asked, outputs=tuple(outputs), dtype=dtype, wire=wire))
    assert len(answer.content) <= bound
    assert wire == "json" or bound <= 1.2 * len(answer.content) + 3 * RESULT_BYTES


@pytest.fixture
async def narrow_house(model: LoadedModel) -> AsyncIterator[House]:
    """Where one golden answer in binary is just small enough."""
    limit = promised(model, EncodeRequest((Input(Source(GOLDEN)),), wire="binary"))
    async with open_house(model, max_response_bytes=limit) as opened:
        yield opened


async def test_one_byte_over_the_limit_is_refused_before_anything_runs(narrow_house: House) -> None:
    """And what is exactly at the limit is answered."""
    await encode(narrow_house.engine, GOLDEN, wire="binary")
    runs = narrow_house.batches_run
    for fields in ({"wire": "base64"}, {"outputs": ("pooled", "words"), "wire": "binary"}):
        with pytest.raises(ResponseTooLarge, match="limit 2048"):
            await encode(narrow_house.engine, GOLDEN, **fields)
    assert narrow_house.batches_run == runs == 1
