"""Attention maps of a request: scores, excluded mass, encodings, sparse rows, and the estimated response size."""

import json
import random
from base64 import b64encode
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise, product
from typing import Any

import numpy as np
import orjson
import pytest
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.types import AttendResponse, AttendResult, MapDtype, UnitKind, Usage
from attendant_client.wire import to_message
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.artifact.manifest import KINDS, Kind, Manifest
from service.engine.model_loader import LoadedModel
from service.engine.tasks import TextVectors
from service.errors import InvalidArgument
from service.operations.attend import (
    BINARY_INDEX_BYTES,
    JSON_INDEX_BYTES,
    MAP_BYTES,
    AttendTask,
    check_attend,
    is_sparse,
    suggest_smaller_maps,
)
from service.operations.encode import LayerTask
from service.operations.inputs import JSON_VALUE_BYTES, RESULT_BYTES, Call, listed_bytes
from service.operations.maps import AttentionMapSpec
from service.spelling import ENGINE as NATIVE
from tests.random_encoders import HandMadeLayer
from tests.service.conftest import ServiceHarness, open_harness
from tests.service.engine.explain.attend_cases import (
    CHEQUE,
    PASSAGE,
    SPANS,
    AttendCase,
    AttendFactory,
    compute,
    decoded,
    dense,
    layers_and_heads,
    map_values,
    stacked,
)


def test_scores_have_no_excluded_mass_or_bias_share(factory: AttendFactory) -> None:
    result = factory.run(factory.case(kind="scores", layers=(4,), head_reduce="mean"))
    assert layers_and_heads(result) == [(4, None)]
    assert [(scores.excluded_mass, scores.bias_share) for scores in result.maps] == [(None, None)]


@pytest.mark.parametrize("unit", ["word", "span"])
def test_rows_without_mass_are_empty(factory: AttendFactory, unit: UnitKind) -> None:
    """Two tokens attend only to [CLS], which the request drops, so their rows are zero in dense and sparse maps."""
    fields: dict[str, Any] = {"unit": unit, "special_tokens": "renormalize", "layers": (1,), "heads": (0,)}
    dense_case, sparse_case = factory.case(**fields), factory.case(**fields, top_p=0.9)
    tokens, units = dense_case.task.tokens, dense_case.task.units
    width = len(tokens)
    eye, zeros = np.eye(width, dtype=np.float32), np.zeros((width, width), np.float32)
    query = zeros.copy()
    query[8, 0] = query[5, 0] = 1000  # "bank" and "check" attend only to [CLS]
    layer = HandMadeLayer(query, np.zeros(width, np.float32), eye, eye)
    spec = AttentionMapSpec("probs", (1,), (0,), "none", "none")
    for case in (dense_case, sparse_case):
        (probs,) = compute(AttendTask(tokens, units, spec, case.request, Call()), eye[None], [layer]).maps
        expected = [units.units.index(unit) for unit in units.units if unit.text in ("bank", "check")]
        assert probs.empty_rows == expected
        assert probs.excluded_mass is not None
        assert probs.excluded_mass[expected].tolist() == [1, 1]
        matrix = decoded(map_values(probs)) if probs.sparse is None else dense(probs.sparse, units.columns)
        row_sums = np.ones(len(matrix))
        row_sums[expected] = 0
        if probs.sparse is None:
            np.testing.assert_allclose(matrix.sum(axis=1), row_sums, atol=1e-6)
        else:
            np.testing.assert_allclose(matrix.sum(axis=1) + decoded(probs.sparse.dropped_mass), row_sums, atol=1e-6)
            assert [probs.sparse.indptr[row + 1] - probs.sparse.indptr[row] for row in expected] == [0, 0]


# Encoding attention maps: dtypes, base64 and decimals.


@pytest.mark.parametrize(
    ("dtype", "cell", "row", "top"),
    [("float32", 0, 1e-6, 1), ("float16", 2**-12, 3.4e-4, 0.9996), ("sqrt_uint8", 3.9e-3, 1e-2, 0.98)],
)
def test_dtype_keeps_cells_row_sums_and_largest_keys(
    factory: AttendFactory, passage: AttendResult, dtype: MapDtype, cell: float, row: float, top: float
) -> None:
    """Checks the largest error in any cell and row sum, and the share of rows that keep their largest key."""
    maps = stacked(factory.run(factory.case(PASSAGE, wire="base64", dtype=dtype)))
    exact = stacked(passage)
    same_top = (maps.argmax(axis=-1) == exact.argmax(axis=-1)).mean()
    errors = np.abs(maps - exact).max(), np.abs(maps.sum(axis=-1) - 1).max()
    print(f"{dtype}: cell {errors[0]:.1e}, row sum {errors[1]:.1e}, same largest {same_top:.4f}")
    assert errors[0] <= cell
    assert errors[1] <= row
    assert same_top >= top


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("decimals", [1, 5, 9])
@pytest.mark.parametrize("kind", ["probs", "scores", "projection"])
async def test_decimals_round_every_number(harness: ServiceHarness, kind: str, decimals: int, dtype: str) -> None:
    """The error is at most half of the last decimal, plus dtype rounding."""
    body = {"inputs": CHEQUE, "kind": kind, "layers": [3], "heads": "all" if kind == "projection" else [5]}
    exact, rounded = [
        json.loads((await harness.post("/v1/attend", {**body, **more})).text, parse_float=Decimal)["results"][0]["maps"]
        for more in ({}, {"decimals": decimals, "dtype": dtype})
    ]
    for field in ("matrix", "excluded_mass", "bias_share"):
        if exact[0][field] is None:
            continue
        values = np.array(rounded[0][field], dtype=object).ravel().tolist()
        assert all(value == round(value, decimals) for value in values), field
        expected = np.array(exact[0][field], np.float64).ravel()
        magnitude = max(1.0, float(np.abs(expected).max()))
        epsilon = 2**-11 if dtype == "float16" and field == "matrix" else 2**-23
        error = float(np.abs(np.array(values, np.float64) - expected).max())
        assert error <= 0.5 * 10**-decimals + epsilon * magnitude, field


# Sparse attention maps: kept values and dropped mass.


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "scores"])
@pytest.mark.parametrize("special", ["keep", "drop", "renormalize"])
@pytest.mark.parametrize("sparse", [{"top_k": 3}, {"top_p": 0.7}, {"top_p": 0.9, "top_k": 4}], ids=str)
def test_sparse_rows_keep_the_largest_values_and_dropped_mass(
    factory: AttendFactory, kind: Kind, special: str, sparse: dict[str, Any]
) -> None:
    """Values are sorted by magnitude within a row. Row sums plus dropped mass equal the dense row sums."""
    fields = {"kind": kind, "special_tokens": special, "unit": "word"}
    full = factory.run(factory.case(**fields))
    result = factory.run(factory.case(**fields, **sparse))
    for full_map, sparse_map in zip(full.maps, result.maps, strict=True):
        assert sparse_map.sparse is not None
        assert sparse_map.matrix is None
        matrix, kept = decoded(map_values(full_map)), sparse_map.sparse
        scattered = dense(kept, result.columns)
        present = scattered != 0
        np.testing.assert_array_equal(scattered[present], matrix[present])
        np.testing.assert_allclose(scattered.sum(axis=1) + decoded(kept.dropped_mass), matrix.sum(axis=1), atol=2e-6)
        magnitudes = np.sort(np.abs(matrix), axis=1)[:, ::-1]
        total = magnitudes.sum(axis=1)
        for row, (start, end) in enumerate(pairwise(kept.indptr)):
            count = end - start
            kept_magnitudes = np.abs(decoded(kept.values)[start:end])
            np.testing.assert_array_equal(kept_magnitudes, magnitudes[row, :count])
            assert count <= sparse.get("top_k", len(result.columns))
            if row in sparse_map.empty_rows:
                assert count == 0
            elif "top_p" in sparse:
                mass = sparse["top_p"] * total[row]
                assert kept_magnitudes[:-1].sum() < mass
                assert count == sparse.get("top_k") or kept_magnitudes.sum() >= mass * (1 - 1e-6)
            else:
                assert count == sparse["top_k"]


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
def test_sparse_rows_keep_as_few_values_as_possible(
    factory: AttendFactory, rows: list[list[float]], top_p: float | None, top_k: int | None
) -> None:
    """The rows contain ties, some zeros, or only zeros."""
    if top_p is None and top_k is None:
        top_p = 1.0
    values = np.array(rows, np.float32)
    case = factory.case("x" if len(values) == 1 else " ".join(["x"] * len(values)), top_p=top_p, top_k=top_k)
    sparse = case.task._sparsify(np.pad(values, ((0, 2), (0, 2))))  # [CLS] and [SEP] add two rows and columns
    full = dense(sparse, case.task.units.columns)
    np.testing.assert_allclose(full[: len(values), : len(values)].sum(axis=1) + decoded(sparse.dropped_mass)[:-2],
                               values.sum(axis=1), atol=1e-6)  # fmt: skip
    counts = np.diff(sparse.indptr)
    assert counts.max() <= (top_k or len(values) + 2)
    assert counts[-1] == 0, "a row of zeros keeps no values"
    if top_p is not None:
        for row, count in zip(values.astype(np.float64), counts, strict=False):
            covered = np.cumsum(np.sort(row)[::-1])
            needed = int((covered < top_p * covered[-1] * (1 - 1e-9)).sum()) + 1 if covered[-1] > 0 else 0
            assert count == min(needed, top_k or needed)


# Estimated sizes of attend responses, and suggestions for making them smaller.

Floats = NDArray[Any]


def encodings() -> Iterator[dict[str, Any]]:
    yield from ({"decimals": decimals} for decimals in (None, 1, 4, 9))
    yield from ({"dtype": "float16", "decimals": decimals} for decimals in (None, 2, 6))
    for wire, dtype in product(("base64", "binary"), ("float32", "float16", "sqrt_uint8")):
        yield {"wire": wire, "dtype": dtype}


def all_cases(factory: AttendFactory) -> list[AttendCase]:
    """Return a case for every combination of fields that `check_attend` accepts."""
    grid: Any = product(
        KINDS,
        ("none", "mean", "sum"),
        ("none", "mean", "rollout"),
        ("token", "word", "span"),
        ("keep", "drop", "renormalize"),
        ({}, {"top_k": 2}, {"top_p": 0.6}),
        encodings(),
    )
    cases = []
    for kind, head_reduce, layer_reduce, unit, special, sparse, encoding in grid:
        fields = {
            "kind": kind,
            "head_reduce": head_reduce,
            "layer_reduce": layer_reduce,
            "unit": unit,
            "special_tokens": special,
            "layers": (5, 2),
            **sparse,
            **encoding,
        }
        try:
            cases.append(factory.case(**fields))
        except InvalidArgument:
            continue
    return cases


@pytest.fixture(scope="module")
def cases(factory: AttendFactory) -> list[AttendCase]:
    """A reproducible sample of a twelfth of all cases."""
    return random.Random(31).sample(everything := all_cases(factory), len(everything) // 12)


@pytest.fixture(scope="module")
def hidden(factory: AttendFactory) -> Floats:
    """Hidden states of the default text, computed once for all cases."""
    layers = tuple(range(factory.manifest.architecture.num_hidden_layers + 1))
    assert factory.model.explain is not None
    (vectors,) = factory.model.explain.run([LayerTask(factory.case().task.tokens, None, True, 0, layers)])
    assert isinstance(vectors, TextVectors)
    assert vectors.hidden is not None
    return vectors.hidden


def array_bytes(result: AttendResult) -> int:
    """Return the total size of the maps' binary arrays."""
    arrays = [
        array
        for attention_map in result.maps
        for array in (map_values(attention_map), attention_map.excluded_mass, attention_map.bias_share)
        if array is not None
    ]
    return sum(array.nbytes for array in arrays)


def message_bytes(result: AttendResult) -> int:
    """Return the size of the messages of a response with one result."""
    maps = [to_message(attention_map, pb.AttentionMap()) for attention_map in result.maps]
    header = to_message(AttendResponse("all-MiniLM-L6-v2", "float32", [], Usage(9, 1)), pb.AttendHeader())
    described = to_message(result, pb.AttendInputInfo(map_count=len(maps)))
    return sum(message.ByteSize() for message in (header, described, *maps))


def test_estimate_is_exact_for_dense_arrays(cases: list[AttendCase], hidden: Floats) -> None:
    """Binary responses only contain arrays. Base64 responses have matrices in base64 and other lists as JSON."""
    count = 0
    for case in cases:
        request, task = case.request, case.task
        if case.task.call.wire == "json" or is_sparse(request):
            continue
        result = case.run(hidden)
        rows, maps, units = len(result.rows), len(result.maps), result.units
        index = BINARY_INDEX_BYTES if case.task.call.wire == "binary" else JSON_INDEX_BYTES
        overhead = RESULT_BYTES + listed_bytes(units, case.task.call.wire) + 2 * len(units) * index
        overhead += maps * (MAP_BYTES + rows * index)
        if case.task.call.wire == "binary":
            assert task.response_bytes() - overhead == array_bytes(result)
        else:
            lists = sum(
                (attention_map.excluded_mass is not None) + (attention_map.bias_share is not None)
                for attention_map in result.maps
            )
            matrices = sum(len(b64encode(map_values(attention_map).tobytes())) for attention_map in result.maps)
            assert task.response_bytes() - overhead == matrices + lists * rows * JSON_VALUE_BYTES["float32"]
        count += 1
    print(f"{count} of {len(cases)} cases have dense arrays in binary or base64")
    assert count > 75


def test_message_stream_is_at_most_as_large_as_the_estimate(cases: list[AttendCase], hidden: Floats) -> None:
    """Covers the gRPC messages of dense and sparse maps."""
    largest = 0.0
    for case in cases:
        if case.task.call.wire == "binary":
            estimate = case.task.response_bytes()
            size = message_bytes(case.run(hidden))
            assert size <= estimate, case.request
            largest = max(largest, size / estimate)
    print(f"largest message stream: {largest:.2f} of the estimate")


async def test_json_response_is_at_most_as_large_as_the_estimate(
    cases: list[AttendCase], harness: ServiceHarness
) -> None:
    json_cases = [case for case in cases if case.task.call.wire != "binary"]
    largest = 0.0
    for case in json_cases[:100]:
        request = case.request
        body = {
            "inputs": [{"text": CHEQUE, "spans": SPANS} if request.unit == "span" else CHEQUE],
            "encoding_format": "float" if case.task.call.wire == "json" else "base64",
            **{
                name: getattr(request, name)
                for name in (
                    "kind", "layers", "head_reduce", "layer_reduce", "unit", "special_tokens", "top_p", "top_k",
                    "decimals",
                    "dtype",
                )
            },
        }  # fmt: skip
        response = await harness.post("/v1/attend", body, **{"accept-encoding": "identity"})
        assert response.status_code == 200, response.text
        estimate = case.task.response_bytes()
        assert len(response.content) <= estimate, request
        largest = max(largest, len(response.content) / estimate)
    print(f"largest JSON: {largest:.2f} of the estimate")


@pytest.mark.parametrize("sparse", [{"top_p": 1.0}, {"top_p": 0.5}, {"top_k": 100}, {"top_k": 1}], ids=str)
@pytest.mark.parametrize("encoding", [{}, {"decimals": 2}, {"dtype": "float16"}], ids=str)
async def test_sparse_response_for_a_long_text_is_at_most_as_large_as_the_estimate(
    factory: AttendFactory, harness: ServiceHarness, sparse: dict[str, Any], encoding: dict[str, Any]
) -> None:
    """With `top_p` alone, a row can keep all values and needs an index for each."""
    fields: dict[str, Any] = {"kind": "norm", "special_tokens": "renormalize", "layers": [1], "heads": [2], **sparse}
    json_response = await harness.post("/v1/attend", {"inputs": PASSAGE, **fields, **encoding})
    assert len(json_response.content) <= factory.case(PASSAGE, **fields, **encoding).task.response_bytes()
    case = factory.case(PASSAGE, wire="binary", dtype=encoding.get("dtype", "float32"), **fields)
    assert message_bytes(factory.run(case)) <= case.task.response_bytes()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("decimals", [1, 2, 5, 9])
def test_rounded_number_is_at_most_as_long_as_the_estimate(
    factory: AttendFactory, dtype: MapDtype, decimals: int
) -> None:
    """Serializes random shares of every magnitude with orjson."""
    case = factory.case(dtype=dtype, decimals=decimals)
    chance = np.random.default_rng(decimals)
    values = np.concatenate([chance.random(20_000), 10.0 ** -(12 * chance.random(20_000)), [0, 1]]).astype(np.float32)
    serialized = orjson.dumps(case.task._array(values), option=orjson.OPT_SERIALIZE_NUMPY)
    lengths = [len(number) + 1 for number in serialized[1:-1].split(b",")]
    assert len(lengths) == len(values)
    assert max(lengths) <= case.task._values_bytes(1)


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_response_over_the_limit_is_rejected_before_inference(
    model: LoadedModel, factory: AttendFactory, encoding: str
) -> None:
    """A response exactly at the limit is accepted."""
    wire = "json" if encoding == "float" else "base64"
    estimate = factory.case(kind="norm", wire=wire).task.response_bytes()
    body = {"inputs": CHEQUE, "kind": "norm", "encoding_format": encoding}
    async with open_harness(model, max_response_bytes=estimate - 1) as harness:
        response = await harness.post("/v1/attend", body)
        assert response.status_code == 422
        assert response.json()["error"]["reason"] == "RESPONSE_TOO_LARGE"
        assert f"({estimate} bytes, limit {estimate - 1})." in response.json()["error"]["message"]
        assert harness.sample("attendant_batch_size_count", lane="explain") == 0
    async with open_harness(model, max_response_bytes=estimate) as harness:
        assert (await harness.post("/v1/attend", body)).status_code == 200
        assert harness.sample("attendant_batch_size_count", lane="explain") == 1


@pytest.mark.parametrize("share", [0.99, 0.5, 0.2, 0.05, 0.001])
def test_every_suggested_change_is_valid_and_sufficient(
    factory: AttendFactory, manifest: Manifest, share: float
) -> None:
    """Each change is applied on its own."""
    field_sets: list[dict[str, Any]] = [
        {},
        {"decimals": 6},
        {"kind": "scores"},
        {"kind": "norm", "wire": "base64"},
        {"kind": "norm", "wire": "binary", "dtype": "float16"},
        {"kind": "norm", "special_tokens": "renormalize", "wire": "binary", "dtype": "float16"},
        {"kind": "projection", "layer_reduce": "rollout"},
        {"head_reduce": "mean", "top_k": 2, "wire": "base64"},
    ]
    for fields in field_sets:
        case = factory.case(text=" ".join(CHEQUE.split() * 5), **fields)
        limit = int(case.task.response_bytes() * share)
        for change in suggest_smaller_maps([case.task], limit).changes:
            changed = factory.case(text=" ".join(CHEQUE.split() * 5), **{**fields, **change})
            check_attend(changed.request, changed.task.call, manifest)
            assert changed.task.response_bytes() <= limit, (fields, change)


def test_suggestions_are_sorted_by_information_loss(factory: AttendFactory) -> None:
    case = factory.case(text=" ".join(CHEQUE.split() * 5))
    remedy = suggest_smaller_maps([case.task], case.task.response_bytes() // 2)
    assert NATIVE.remedy(remedy) == (
        "Request fewer layers or send a shorter text, or set decimals to 4"
        ' or encoding_format to "base64" or head_reduce to "mean" or top_k to 10.'
    )
    rounded = factory.case(text=" ".join(CHEQUE.split() * 5), decimals=9)
    remedy = suggest_smaller_maps([rounded.task], rounded.task.response_bytes() - 1)
    assert 'encoding_format to "base64" without decimals' in NATIVE.remedy(remedy)


def test_inputs_that_do_not_fit_alone_need_both_changes(factory: AttendFactory) -> None:
    task = factory.case(text=" ".join(CHEQUE.split() * 5)).task
    remedy = suggest_smaller_maps([task] * 100, task.response_bytes() // 2)
    assert NATIVE.remedy(remedy).startswith("Send each input alone and set decimals to 4 or ")
    assert NATIVE.remedy(suggest_smaller_maps([task, task], task.response_bytes())).startswith(
        "Request fewer layers or send fewer inputs, or set decimals to 4"
    )
