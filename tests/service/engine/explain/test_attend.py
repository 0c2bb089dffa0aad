"""How maps are encoded, what sparse rows leave out, and how large an answer is said to be."""

import base64
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise, product
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.artifact import KINDS, Kind, Manifest
from model.tokenizer import Offsets, Source, Tokenizer, Tokens
from service.engine.encode.response import JSON_VALUE_BYTES, RESULT_BYTES, listed_bytes
from service.engine.explain.attend import (
    BINARY_INDEX_BYTES,
    JSON_INDEX_BYTES,
    MAP_BYTES,
    AttendTask,
    suggest_smaller,
)
from service.engine.explain.maps import BlockWeights
from service.engine.explain.units import find_units
from service.engine.model_loader import LoadedModel
from service.engine.schema.encode import Array, Input, MapDType, Timing
from service.engine.schema.explain import (
    AttendRequest,
    AttendResponse,
    AttendResult,
    AttentionMap,
    AttentionMapSpec,
    SparseMatrix,
    UnitKind,
)
from service.engine.validation import check_attend
from service.errors import InvalidArgument
from service.rpc.explain import attend_responses
from tests.random_encoders import blocks_of, random_encoder
from tests.service.conftest import House, open_house

Floats = NDArray[Any]

CHEQUE = "He cashed a check at the bank."
SPANS = ((25, 29), (3, 9), (12, 17))
PASSAGE = (
    "The ferry left the harbour before the sun was up, and the two sisters stood at the rail with their collars "
    "turned against the wind. Nobody spoke. A gull followed them as far as the lighthouse, where the water changes "
    "from green to a heavy grey, and then it wheeled round and went home. The younger one had packed bread, cheese and "
    "a jar of plums; the older one had packed nothing but letters, forty of them, tied with kitchen string. At noon "
    "the engineer came on deck, wiped his hands on a rag and told them that the island's only shop would be closed, as "
    "it was every Thursday, so they had better be polite to the baker's wife."
)


@dataclass
class Planned:
    """A request about one input, and the work that the engine would make of it."""

    request: AttendRequest
    work: AttendTask


@dataclass
class Workshop:
    """Makes works, and the hidden states that they are called with."""

    model: LoadedModel
    manifest: Manifest

    def plan(self, text: str = CHEQUE, pair: str | None = None, **fields: Any) -> Planned:
        """Raises `InvalidArgument` for what check_attend refuses."""
        spans: tuple[Offsets, ...] = SPANS if fields.get("unit") == "spans" else ()
        item = Input(Source(text, pair), spans)
        request = AttendRequest((item,), **fields)
        plan = check_attend(request, self.manifest)
        tokenizer: Tokenizer = self.model.tokenizer
        (tokens,) = tokenizer.encode([item.source])
        units = find_units(item, tokens, tokenizer.surfaces(tokens), request, "inputs[0]")
        return Planned(request, AttendTask(tokens, units, plan, request, self.model.blocks))

    def answer(self, planned: Planned) -> AttendResult:
        """From the real model."""
        (result,) = self.model.explain.run([planned.work])
        assert isinstance(result, AttendResult)
        return result


@pytest.fixture(scope="module")
def workshop(model: LoadedModel, manifest: Manifest) -> Workshop:
    return Workshop(model, manifest)


@pytest.fixture(scope="module")
def passage(workshop: Workshop) -> AttendResult:
    """Every head of every layer over 144 tokens, exact."""
    result = workshop.answer(workshop.plan(PASSAGE, wire="binary"))
    assert len(result.rows) == 144
    return result


def values_of(found: AttentionMap) -> Array:
    if found.sparse is not None:
        return found.sparse.values
    assert found.matrix is not None
    return found.matrix


def decoded(array: Array) -> NDArray[np.float64]:
    """From the bytes that go out, as a client reads them."""
    types: dict[str, str] = {"float32": "<f4", "float16": "<f2", "sqrt_uint8": "u1"}
    read = np.frombuffer(array.to_bytes(), types[array.dtype]).reshape(array.shape).astype(np.float64)
    return (read / 255) ** 2 if array.dtype == "sqrt_uint8" else read


def stacked(result: AttendResult) -> NDArray[np.float64]:
    return np.stack([decoded(values_of(each)) for each in result.maps])


def dense(sparse: SparseMatrix, columns: Sequence[int]) -> NDArray[np.float64]:
    """The matrix, with 0 where a value was left out."""
    values = decoded(sparse.values)
    places = {unit: column for column, unit in enumerate(columns)}
    full = np.zeros((len(sparse.row_starts) - 1, len(columns)))
    for row, (start, end) in enumerate(pairwise(sparse.row_starts)):
        for entry in range(start, end):
            full[row, places[sparse.indices[entry]]] = values[entry]
    return full


@pytest.mark.parametrize(
    ("dtype", "cell", "row", "top"),
    [("float32", 0, 1e-6, 1), ("float16", 2**-12, 3.4e-4, 0.9996), ("sqrt_uint8", 3.9e-3, 1e-2, 0.98)],
)
def test_an_encoding_loses_no_more_than_is_said(
    workshop: Workshop, passage: AttendResult, dtype: MapDType, cell: float, row: float, top: float
) -> None:
    """Over every map of a passage: each cell, each row's sum, and which key is the largest."""
    found = stacked(workshop.answer(workshop.plan(PASSAGE, wire="base64", dtype=dtype)))
    exact = stacked(passage)
    same = (found.argmax(axis=-1) == exact.argmax(axis=-1)).mean()
    losses = np.abs(found - exact).max(), np.abs(found.sum(axis=-1) - 1).max()
    print(f"{dtype}: cell {losses[0]:.1e}, row sum {losses[1]:.1e}, same largest {same:.4f}")
    assert losses[0] <= cell
    assert losses[1] <= row
    assert same >= top


def test_base64_is_the_bytes(workshop: Workshop) -> None:
    """In row order, little-endian."""
    array = values_of(workshop.answer(workshop.plan(layers=(2,), heads=(1,), wire="base64")).maps[0])
    assert base64.b64decode(array.to_base64()) == array.values.astype("<f4").tobytes(order="C")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("decimals", [1, 4, 5, 9])
@pytest.mark.parametrize("kind", ["probs", "scores", "projection"])
async def test_decimals_are_what_is_sent(house: House, kind: str, decimals: int, dtype: str) -> None:
    """No number has more of them, and none is further off than half of the last one."""
    body = {"inputs": CHEQUE, "kind": kind, "layers": [3], "heads": "all" if kind == "projection" else [5]}
    exact, rounded = [
        json.loads((await house.post("/v1/attend", {**body, **more})).text, parse_float=Decimal)["results"][0]["maps"]
        for more in ({}, {"decimals": decimals, "dtype": dtype})
    ]
    for field in ("matrix", "excluded_mass", "bias_share"):
        if exact[0][field] is None:
            continue
        sent = np.array(rounded[0][field], dtype=object).ravel().tolist()
        assert all(value == round(value, decimals) for value in sent), field
        true = np.array(exact[0][field], np.float64).ravel()
        magnitude = max(1.0, float(np.abs(true).max()))
        narrowed = 2**-11 if dtype == "float16" and field == "matrix" else 2**-23
        apart = float(np.abs(np.array(sent, np.float64) - true).max())
        assert apart <= 0.5 * 10**-decimals + narrowed * magnitude, field


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "scores"])
@pytest.mark.parametrize("special", ["keep", "drop", "renormalize"])
@pytest.mark.parametrize("sparse", [{"top_k": 3}, {"top_p": 0.7}, {"top_p": 0.9, "top_k": 4}], ids=str)
def test_sparse_rows_and_what_they_left_out_are_the_rows(
    workshop: Workshop, kind: Kind, special: str, sparse: dict[str, Any]
) -> None:
    """The largest magnitudes, in order, as many as were asked for; with the rest each row has its sum."""
    fields = {"kind": kind, "special": special, "unit": "word"}
    whole = workshop.answer(workshop.plan(**fields))
    found = workshop.answer(workshop.plan(**fields, **sparse))
    for full, thin in zip(whole.maps, found.maps, strict=True):
        assert thin.sparse is not None
        assert thin.matrix is None
        matrix, kept = decoded(values_of(full)), thin.sparse
        scattered = dense(kept, found.columns)
        present = scattered != 0
        np.testing.assert_array_equal(scattered[present], matrix[present])
        np.testing.assert_allclose(scattered.sum(axis=1) + decoded(kept.rest_mass), matrix.sum(axis=1), atol=2e-6)
        magnitudes = np.sort(np.abs(matrix), axis=1)[:, ::-1]
        total = magnitudes.sum(axis=1)
        for row, (start, end) in enumerate(pairwise(kept.row_starts)):
            count = end - start
            sizes = np.abs(decoded(kept.values)[start:end])
            np.testing.assert_array_equal(sizes, magnitudes[row, :count])
            assert count <= sparse.get("top_k", len(found.columns))
            if row in thin.no_mass_rows:
                assert count == 0
            elif "top_p" in sparse:
                enough = sparse["top_p"] * total[row]
                assert sizes[:-1].sum() < enough
                assert count == sparse.get("top_k") or sizes.sum() >= enough * (1 - 1e-6)
            else:
                assert count == sparse["top_k"]


def test_sparse_indices_are_into_the_units(workshop: Workshop) -> None:
    """Not into the columns, which a segment filter makes fewer."""
    fields = {"unit": "word", "special": "drop", "segments": "a_to_b", "layers": (4,), "head_reduce": "mean"}
    found = workshop.answer(workshop.plan(CHEQUE, "The teller smiled.", top_k=2, **fields))
    assert found.maps[0].sparse is not None
    assert set(found.maps[0].sparse.indices) <= set(found.columns)
    whole = workshop.answer(workshop.plan(CHEQUE, "The teller smiled.", **fields))
    best = [found.columns[column] for column in decoded(values_of(whole.maps[0])).argmax(axis=1)]
    starts = found.maps[0].sparse.row_starts
    assert [found.maps[0].sparse.indices[start] for start in starts[:-1]] == best
    assert {found.units[index].segment for index in found.maps[0].sparse.indices} == {1}


@given(
    st.integers(1, 12).flatmap(
        lambda size: st.lists(
            st.lists(st.sampled_from([0.0, 1e-9, 0.1, 0.25, 0.25, 1.0]), min_size=size, max_size=size),
            min_size=size,
            max_size=size,
        )
    ),
    st.none() | st.floats(0.01, 1),
    st.none() | st.integers(1, 13),
)
def test_any_row_is_covered_by_as_few_as_possible(
    workshop: Workshop, rows: list[list[float]], top_p: float | None, top_k: int | None
) -> None:
    """With ties, zeros and whole rows of nothing."""
    if top_p is None and top_k is None:
        top_p = 1.0
    values = np.array(rows, np.float32)
    planned = workshop.plan("x" if len(values) == 1 else " ".join(["x"] * len(values)), top_p=top_p, top_k=top_k)
    sparse = planned.work._sparsify(np.pad(values, ((0, 2), (0, 2))))  # as many rows and columns as there are tokens
    full = dense(sparse, planned.work.units.columns)
    np.testing.assert_allclose(full[: len(values), : len(values)].sum(axis=1) + decoded(sparse.rest_mass)[:-2],
                               values.sum(axis=1), atol=1e-6)  # fmt: skip
    counts = np.diff(sparse.row_starts)
    assert counts.max() <= (top_k or len(values) + 2)
    assert counts[-1] == 0, "a row of nothing needs nothing"
    if top_p is not None:
        for row, count in zip(values.astype(np.float64), counts, strict=False):
            covered = np.cumsum(np.sort(row)[::-1])
            needed = int((covered < top_p * covered[-1] * (1 - 1e-9)).sum()) + 1 if covered[-1] > 0 else 0
            assert count == min(needed, top_k or needed)


def encodings() -> Iterator[dict[str, Any]]:
    yield from ({"decimals": decimals} for decimals in (None, 1, 4, 9))
    yield from ({"dtype": "float16", "decimals": decimals} for decimals in (None, 2, 6))
    for wire, dtype in product(("base64", "binary"), ("float32", "float16", "sqrt_uint8")):
        yield {"wire": wire, "dtype": dtype}


def every_request(workshop: Workshop) -> list[Planned]:
    """All that check_attend allows of a grid of fields, over a text with spans."""
    grid: Any = product(
        KINDS,
        ("none", "mean", "sum"),
        ("none", "mean", "rollout"),
        ("token", "word", "spans"),
        ("keep", "drop", "renormalize"),
        ({}, {"top_k": 2}, {"top_p": 0.6}),
        encodings(),
    )
    found = []
    for kind, head_reduce, layer_reduce, unit, special, sparse, encoding in grid:
        fields = {
            "kind": kind,
            "head_reduce": head_reduce,
            "layer_reduce": layer_reduce,
            "unit": unit,
            "special": special,
            "layers": (5, 2),
            **sparse,
            **encoding,
        }
        try:
            found.append(workshop.plan(**fields))
        except InvalidArgument:
            continue
    return found


@pytest.fixture(scope="module")
def requests(workshop: Workshop) -> list[Planned]:
    """A seeded sixth of them."""
    return random.Random(31).sample(every := every_request(workshop), len(every) // 6)


@pytest.fixture(scope="module")
def hidden(workshop: Workshop) -> Floats:
    """What every layer gave for the text of the grid, so that the model runs once."""

    @dataclass
    class Keep:
        tokens: Tokens

        def __call__(self, hidden: Floats) -> Floats:
            return hidden.copy()

    (found,) = workshop.model.explain.run([Keep(workshop.plan().work.tokens)])
    assert isinstance(found, np.ndarray)
    return found


def bytes_of_numbers(result: AttendResult) -> int:
    """Every number of the maps, in binary."""
    arrays = [
        array
        for each in result.maps
        for array in (values_of(each), each.excluded_mass, each.bias_share)
        if array is not None
    ]
    return sum(len(array.to_bytes()) for array in arrays)


def test_the_size_of_dense_numbers_is_known_to_the_byte(requests: list[Planned], hidden: Floats) -> None:
    """In binary all of them; in base64 the matrices, beside which lists are counted as JSON."""
    seen = 0
    for planned in requests:
        request, work = planned.request, planned.work
        if request.wire == "json" or request.sparse:
            continue
        result = work(hidden)
        rows, count, units = len(result.rows), len(result.maps), result.units
        index = BINARY_INDEX_BYTES if request.wire == "binary" else JSON_INDEX_BYTES
        beside = RESULT_BYTES + listed_bytes(units, request.wire) + 2 * len(units) * index
        beside += count * (MAP_BYTES + rows * index)
        if request.wire == "binary":
            assert work.response_bytes() - beside == bytes_of_numbers(result)
        else:
            lists = sum((each.excluded_mass is not None) + (each.bias_share is not None) for each in result.maps)
            matrices = sum(len(values_of(each).to_base64()) for each in result.maps)
            assert work.response_bytes() - beside == matrices + lists * rows * JSON_VALUE_BYTES["float32"]
        seen += 1
    print(f"{seen} of {len(requests)} requests are of dense arrays in binary or base64")
    assert seen > 150


def test_no_message_stream_is_larger_than_was_said(requests: list[Planned], hidden: Floats) -> None:
    """Header and maps as gRPC serialises them, dense and sparse."""
    closest = 0.0
    for planned in requests:
        if planned.request.wire == "binary":
            said = planned.work.response_bytes()
            response = AttendResponse("all-MiniLM-L6-v2", "float32", [planned.work(hidden)], Timing(0, 0, 0))
            sent = sum(each.ByteSize() for each in attend_responses(response))
            assert sent <= said, planned.request
            closest = max(closest, sent / said)
    print(f"largest message stream: {closest:.2f} of what was said")


async def test_no_json_is_larger_than_was_said(requests: list[Planned], house: House) -> None:
    """Through the door itself."""
    spelled = [planned for planned in requests if planned.request.wire != "binary"]
    closest = 0.0
    for planned in spelled[:200]:
        request = planned.request
        body = {
            "inputs": [{"text": CHEQUE, "spans": SPANS} if request.unit == "spans" else CHEQUE],
            "encoding": "float" if request.wire == "json" else "base64",
            **{
                name: getattr(request, name)
                for name in (
                    "kind", "layers", "head_reduce", "layer_reduce", "unit", "special", "top_p", "top_k", "decimals",
                    "dtype",
                )
            },
        }  # fmt: skip
        reply = await house.post("/v1/attend", body, **{"accept-encoding": "identity"})
        assert reply.status_code == 200, reply.text
        said = planned.work.response_bytes()
        assert len(reply.content) <= said, request
        closest = max(closest, len(reply.content) / said)
    print(f"largest JSON: {closest:.2f} of what was said")


@pytest.mark.parametrize("sparse", [{"top_p": 1.0}, {"top_p": 0.5}, {"top_k": 100}, {"top_k": 1}], ids=str)
@pytest.mark.parametrize("encoding", [{}, {"decimals": 2}, {"dtype": "float16"}], ids=str)
async def test_sparse_rows_of_a_long_text_are_no_larger_than_was_said(
    workshop: Workshop, house: House, sparse: dict[str, Any], encoding: dict[str, Any]
) -> None:
    """top_p alone may keep every value, and then each has its index beside it; over JSON, and over gRPC."""
    fields: dict[str, Any] = {"kind": "norm", "special": "renormalize", "layers": [1], "heads": [2], **sparse}
    reply = await house.post("/v1/attend", {"inputs": PASSAGE, **fields, **encoding})
    assert len(reply.content) <= workshop.plan(PASSAGE, **fields, **encoding).work.response_bytes()
    planned = workshop.plan(PASSAGE, wire="binary", dtype=encoding.get("dtype", "float32"), **fields)
    response = AttendResponse("all-MiniLM-L6-v2", "float32", [workshop.answer(planned)], Timing(0, 0, 0))
    assert sum(each.ByteSize() for each in attend_responses(response)) <= planned.work.response_bytes()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("decimals", [1, 2, 5, 9])
def test_a_rounded_number_never_takes_more_than_it_is_counted_for(
    workshop: Workshop, dtype: MapDType, decimals: int
) -> None:
    """Random shares of every magnitude, as orjson spells them, against the size of so many more cells."""
    planned = workshop.plan(dtype=dtype, decimals=decimals)
    chance = np.random.default_rng(decimals)
    values = np.concatenate([chance.random(20_000), 10.0 ** -(12 * chance.random(20_000)), [0, 1]]).astype(np.float32)
    spelled = orjson.dumps(planned.work._numbers(values).values, option=orjson.OPT_SERIALIZE_NUMPY)
    lengths = [len(number) + 1 for number in spelled[1:-1].split(b",")]
    assert len(lengths) == len(values)
    assert max(lengths) <= planned.work._values_bytes(1)


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_one_byte_over_is_refused_before_the_model_runs(
    model: LoadedModel, workshop: Workshop, encoding: str
) -> None:
    """At the limit the answer comes."""
    wire = "json" if encoding == "float" else "base64"
    said = workshop.plan(kind="norm", wire=wire).work.response_bytes()
    body = {"inputs": CHEQUE, "kind": "norm", "encoding": encoding}
    async with open_house(model, max_response_bytes=said - 1) as house:
        reply = await house.post("/v1/attend", body)
        assert reply.status_code == 422
        assert reply.json()["error"]["reason"] == "response_too_large"
        assert f"(up to {said} bytes, limit {said - 1})." in reply.json()["error"]["message"]
        assert house.sample("attendant_batch_size_count", lane="explain") == 0
    async with open_house(model, max_response_bytes=said) as house:
        assert (await house.post("/v1/attend", body)).status_code == 200
        assert house.sample("attendant_batch_size_count", lane="explain") == 1


ADVICE: dict[str, dict[str, Any]] = {
    "decimals: 4": {"decimals": 4},
    'encoding: "base64"': {"wire": "base64", "decimals": None},
    'dtype: "float16"': {"dtype": "float16"},
    'dtype: "sqrt_uint8"': {"dtype": "sqrt_uint8"},
    'head_reduce: "mean"': {"head_reduce": "mean"},
    'head_reduce: "sum"': {"head_reduce": "sum"},
    "top_k: 10": {"top_k": 10},
}


@pytest.mark.parametrize("share", [0.99, 0.5, 0.2, 0.05, 0.001])
def test_each_change_that_is_advised_is_enough(workshop: Workshop, manifest: Manifest, share: float) -> None:
    """On its own, and it is a request that is taken; where none is, so it is said."""
    cases: list[dict[str, Any]] = [
        {},
        {"decimals": 6},
        {"kind": "scores"},
        {"kind": "norm", "wire": "base64"},
        {"kind": "norm", "wire": "binary", "dtype": "float16"},
        {"kind": "norm", "special": "renormalize", "wire": "binary", "dtype": "float16"},
        {"kind": "projection", "layer_reduce": "rollout"},
        {"head_reduce": "mean", "top_k": 2, "wire": "base64"},
    ]
    for fields in cases:
        planned = workshop.plan(text=" ".join(CHEQUE.split() * 5), **fields)
        limit = int(planned.work.response_bytes() * share)
        advice = suggest_smaller([planned.work], limit)
        named = [change for told, change in ADVICE.items() if told in advice]
        for change in named:
            changed = workshop.plan(text=" ".join(CHEQUE.split() * 5), **{**fields, **change})
            check_attend(changed.request, manifest)
            assert changed.work.response_bytes() <= limit, (fields, change)
        assert bool(named) is advice.startswith("Any of these would do")


def test_what_is_advised_for_every_head_of_a_long_text(workshop: Workshop) -> None:
    """All that helps, what loses least first."""
    planned = workshop.plan(text=" ".join(CHEQUE.split() * 5))
    advice = suggest_smaller([planned.work], planned.work.response_bytes() // 2)
    assert advice == 'Any of these would do: decimals: 4, encoding: "base64", head_reduce: "mean", top_k: 10.'


def test_maps_come_layer_by_layer_and_head_by_head(workshop: Workshop) -> None:
    """In the order asked for; None where reduced; what scores exclude is nothing that could be said."""
    found = workshop.answer(workshop.plan(layers=(4, 1), heads=(7, 0)))
    assert [(each.layer, each.head) for each in found.maps] == [(4, 7), (4, 0), (1, 7), (1, 0)]
    found = workshop.answer(workshop.plan(layers=(4, 1), head_reduce="max", layer_reduce="mean"))
    assert [(each.layer, each.head) for each in found.maps] == [(None, None)]
    found = workshop.answer(workshop.plan(kind="scores", layers=(4,), head_reduce="mean"))
    assert [(each.layer, each.head, each.excluded_mass, each.bias_share) for each in found.maps] == [
        (4, None, None, None)
    ]


def test_the_bias_share_and_what_is_excluded_complete_a_row(workshop: Workshop) -> None:
    """projection, words, special tokens dropped: values + excluded mass + bias share = 1."""
    found = workshop.answer(workshop.plan(kind="projection", unit="word", special="drop"))
    assert len(found.maps) == 6
    for each in found.maps:
        assert each.excluded_mass is not None
        assert each.bias_share is not None
        total = decoded(values_of(each)).sum(axis=1) + decoded(each.excluded_mass) + decoded(each.bias_share)
        np.testing.assert_allclose(total, 1, atol=1e-5)


def test_a_work_computes_what_its_plan_says_from_any_hidden_states(workshop: Workshop) -> None:
    """The blocks are the work's own: a random encoder's maps come out of random weights."""
    encoder = random_encoder(layers=3, heads=4, width=32)
    planned = workshop.plan()
    tokens = planned.work.tokens
    plan = AttentionMapSpec("probs", (2,), (0, 1, 2, 3), "none", "none")
    every = np.random.default_rng(3).standard_normal((4, len(tokens), 32)).astype(np.float32)
    result = AttendTask(tokens, planned.work.units, plan, planned.request, blocks_of(encoder))(every)
    assert [(each.layer, each.head) for each in result.maps] == [(2, head) for head in range(4)]
    np.testing.assert_allclose(stacked(result).sum(axis=-1), 1, atol=1e-5)


@pytest.mark.parametrize("unit", ["word", "spans"])
def test_a_row_without_mass_is_named_in_the_answer(workshop: Workshop, unit: UnitKind) -> None:
    """Two tokens that look at [CLS] alone, by weights that a test can set: their rows are zeros, dense and sparse."""
    fields: dict[str, Any] = {"unit": unit, "special": "renormalize", "layers": (1,), "heads": (0,)}
    planned = [workshop.plan(**fields), workshop.plan(**fields, top_p=0.9)]
    work = planned[0].work
    width = len(work.tokens)
    eye, zeros, bias = (
        np.eye(width, dtype=np.float32),
        np.zeros((width, width), np.float32),
        np.zeros(width, np.float32),
    )
    query = zeros.copy()
    query[8, 0] = query[5, 0] = 1000  # "bank" and "check" find [CLS], and nothing else comes near
    weights = BlockWeights(1, 1e-12, query, bias, eye, bias, eye, bias, eye, bias, bias + 1, bias)
    for each in planned:
        own = AttendTask(
            work.tokens, work.units, AttentionMapSpec("probs", (1,), (0,), "none", "none"), each.request, [weights]
        )
        (found,) = own(eye[None]).maps
        expected = [work.units.units.index(unit) for unit in work.units.units if unit.text in ("bank", "check")]
        assert found.no_mass_rows == expected
        assert found.excluded_mass is not None
        assert found.excluded_mass.values[expected].tolist() == [1, 1]
        full = decoded(values_of(found)) if found.sparse is None else dense(found.sparse, work.units.columns)
        rows = np.ones(len(full))
        rows[expected] = 0
        if found.sparse is None:
            np.testing.assert_allclose(full.sum(axis=1), rows, atol=1e-6)
        else:
            np.testing.assert_allclose(full.sum(axis=1) + decoded(found.sparse.rest_mass), rows, atol=1e-6)
            assert [found.sparse.row_starts[row + 1] - found.sparse.row_starts[row] for row in expected] == [0, 0]
