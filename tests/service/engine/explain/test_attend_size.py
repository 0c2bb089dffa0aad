"""Estimated sizes of attend responses, and suggestions for making them smaller."""

import random
from base64 import b64encode
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import orjson
import pytest
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.types import AttendResponse, AttendResult, MapDtype, Usage
from attendant_client.wire import to_message
from numpy.typing import NDArray

from model.artifact.manifest import KINDS, Manifest
from service.engine.model_loader import LoadedModel
from service.engine.tasks import TextVectors
from service.errors import InvalidArgument
from service.operations.attend import (
    BINARY_INDEX_BYTES,
    JSON_INDEX_BYTES,
    MAP_BYTES,
    check_attend,
    is_sparse,
    suggest_smaller_maps,
)
from service.operations.encode import LayerTask
from service.operations.inputs import JSON_VALUE_BYTES, RESULT_BYTES, listed_bytes
from service.spelling import ENGINE as NATIVE
from tests.service.conftest import ServiceHarness, open_harness
from tests.service.engine.explain.attend_cases import CHEQUE, PASSAGE, SPANS, AttendCase, AttendFactory, map_values

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
