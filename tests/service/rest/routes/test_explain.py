"""/v1/attend and /v1/compare, as documented in docs/api.md."""

import base64
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.engine.model_loader import LoadedModel
from tests.service.conftest import ServiceHarness, open_harness

CASHED = "He cashed a check at the bank."
RIVER = "They sat on the bank of the river."
FIELDS = {"layer", "head", "matrix", "excluded_mass", "bias_share", "empty_rows"}


async def attend(harness: ServiceHarness, inputs: object = CASHED, **fields: Any) -> dict[str, Any]:
    response = await harness.post("/v1/attend", {"inputs": inputs, **fields})
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()["results"][0]
    return result


def layers_and_heads(result: dict[str, Any]) -> list[tuple[int | None, int | None]]:
    return [(attention_map["layer"], attention_map["head"]) for attention_map in result["maps"]]


def tensor(field: dict[str, Any]) -> NDArray[Any]:
    types = {"float32": "<f4", "float16": "<f2", "sqrt_uint8": "u1"}
    return np.frombuffer(base64.b64decode(field["data"]), types[field["dtype"]]).reshape(field["shape"])


async def test_response_has_the_fields_of_the_contract(harness: ServiceHarness) -> None:
    """By default, there is one token map of probabilities per layer and head."""
    response = await harness.post("/v1/attend", {"inputs": CASHED})
    body = response.json()
    assert set(body) == {"model", "precision", "results", "usage"}
    assert (body["model"], body["precision"]) == ("all-MiniLM-L6-v2", "float32")
    assert response.headers["x-attendant-model"] == f"all-MiniLM-L6-v2@{harness.engine.info.digest}"
    (result,) = body["results"]
    assert set(result) == {"truncated", "units", "rows", "columns", "maps"}
    assert result["units"][2] == {
        "text": "cash", "start": 3, "end": 7, "segment": 0, "special": False, "word_index": None
    }  # fmt: skip
    assert [unit["special"] for unit in result["units"]] == [True] + [False] * 9 + [True]
    assert result["rows"] == result["columns"] == list(range(11))
    maps = result["maps"]
    assert layers_and_heads(result) == [(layer, head) for layer in range(1, 7) for head in range(12)]
    assert all(set(attention_map) == FIELDS for attention_map in maps)
    assert np.shape([attention_map["matrix"] for attention_map in maps]) == (72, 11, 11)


async def test_dropped_special_tokens_are_excluded_mass_or_renormalized(harness: ServiceHarness) -> None:
    text = "the train left the station on time"
    fields: dict[str, Any] = {"unit": "word", "head_reduce": "mean", "layers": [6]}
    result = await attend(harness, text, special_tokens="renormalize", **fields)
    (renormalized,) = result["maps"]
    (dropped,) = (await attend(harness, text, special_tokens="drop", **fields))["maps"]
    assert [unit["text"] for unit in result["units"]] == text.split()
    assert np.shape(renormalized["matrix"]) == (7, 7)
    np.testing.assert_allclose(np.sum(renormalized["matrix"], axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(np.sum(dropped["matrix"], axis=1) + dropped["excluded_mass"], 1, atol=1e-5)
    assert min(dropped["excluded_mass"]) > 0.1


async def test_check_and_cashed_contribute_most_to_bank(harness: ServiceHarness) -> None:
    result = await attend(harness, kind="projection", layer_reduce="rollout", unit="word", special_tokens="drop")
    names = [unit["text"] for unit in result["units"]]
    row = dict(zip(names, result["maps"][0]["matrix"][names.index("bank")], strict=True))
    assert {name for name in sorted(row, key=lambda name: -row[name]) if name != "bank"} >= {"check", "cashed"}
    assert sorted(row, key=lambda name: -row[name])[1:3] in (["check", "cashed"], ["cashed", "check"])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"layers": [6, 2], "heads": [3]}, [(6, 3), (2, 3)]),
        ({"layers": [6], "head_reduce": "mean"}, [(6, None)]),
        ({"head_reduce": "max", "layer_reduce": "mean"}, [(None, None)]),
        ({"heads": [1, 0], "layer_reduce": "mean"}, [(None, 1), (None, 0)]),
        ({"layer_reduce": "rollout"}, [(None, None)]),
        ({"kind": "norm", "layers": [1], "heads": [5, 6]}, [(1, 5), (1, 6)]),
        ({"kind": "norm", "layers": [1], "head_reduce": "sum"}, [(1, None)]),
        ({"kind": "block_norm", "layers": [1, 2]}, [(1, None), (2, None)]),
        ({"kind": "projection", "layer_reduce": "mean"}, [(None, None)]),
    ],
)
async def test_maps_follow_the_requested_order_of_layers_and_heads(
    harness: ServiceHarness, fields: dict[str, Any], expected: list[object]
) -> None:
    """A reduced axis is null."""
    assert layers_and_heads(await attend(harness, **fields)) == expected


async def test_inputs_have_their_own_units(harness: ServiceHarness) -> None:
    inputs = [CASHED, {"text": "river bank", "pair": "flows"}, {"token_ids": [2924]}]
    body = {"inputs": inputs, "layers": [1], "heads": [0]}
    results = (await harness.post("/v1/attend", body)).json()["results"]
    assert [[unit["segment"] for unit in result["units"]] for result in results] == [
        [0] * 11,
        [0, 0, 0, 0, 1, 1],
        [0, 0, 0],
    ]
    assert [unit["text"] for unit in results[2]["units"]] == ["[CLS]", "bank", "[SEP]"]


async def test_pair_segments_select_rows_and_columns(harness: ServiceHarness) -> None:
    """The rest of a row's mass is excluded mass."""
    pair = [{"text": "river bank", "pair": "it flows"}]
    result = await attend(harness, pair, segments="a_to_b", special_tokens="drop", layers=[3], head_reduce="mean")
    assert (result["rows"], result["columns"]) == ([0, 1], [2, 3])
    (probs,) = result["maps"]
    assert np.shape(probs["matrix"]) == (2, 2)
    np.testing.assert_allclose(np.sum(probs["matrix"], axis=1) + probs["excluded_mass"], 1, atol=1e-5)


@pytest.mark.parametrize(("dtype", "loss"), [("float32", 0), ("float16", 5e-4), ("sqrt_uint8", 4e-3)])
async def test_base64_has_the_values_of_float(harness: ServiceHarness, dtype: str, loss: float) -> None:
    """An element q of sqrt_uint8 stands for (q / 255)^2."""
    plain = await attend(harness, layers=[2], heads=[7])
    encoded = await attend(harness, layers=[2], heads=[7], encoding_format="base64", dtype=dtype)
    elements = tensor(encoded["maps"][0]["matrix"])
    values = (elements / 255.0) ** 2 if dtype == "sqrt_uint8" else elements.astype(float)
    np.testing.assert_allclose(values, plain["maps"][0]["matrix"], atol=loss + 1e-9)


async def test_sparse_rows_are_sorted_and_have_dropped_mass(harness: ServiceHarness) -> None:
    """Base64 must have the same values."""
    fields: dict[str, Any] = {"layers": [2], "heads": [7]}
    dense = np.array((await attend(harness, **fields))["maps"][0]["matrix"])
    fields |= {"top_p": 0.7, "top_k": 5}
    sparse = (await attend(harness, **fields))["maps"][0]["matrix"]
    encoded = (await attend(harness, **fields, encoding_format="base64"))["maps"][0]["matrix"]
    for row, (indices, values) in enumerate(zip(sparse["indices"], sparse["values"], strict=True)):
        assert indices == np.argsort(-dense[row])[: len(indices)].tolist()
        np.testing.assert_allclose(values, dense[row][indices], atol=1e-7)
        assert len(indices) == 5 or sum(values) >= 0.7
        assert sum(values) + sparse["dropped_mass"][row] == pytest.approx(1, abs=1e-5)
    assert encoded["indices"] == sparse["indices"]
    np.testing.assert_allclose(tensor(encoded["values"]), np.concatenate(sparse["values"]), atol=1e-7)


async def test_decimals_round_the_values(harness: ServiceHarness) -> None:
    (probs,) = (await attend(harness, layers=[2], heads=[7], decimals=2))["maps"]
    assert {value for row in probs["matrix"] for value in row} <= {round(number / 100, 2) for number in range(101)}


async def test_comparison_has_the_fields_of_the_contract(harness: ServiceHarness) -> None:
    """One occurrence is given as a span, the other as a word index."""
    request = {"occurrences": [{"text": CASHED, "span": [25, 29]}, {"text": RIVER, "word_index": 4}]}
    response = await harness.post("/v1/compare", request)
    body = response.json()
    assert set(body) == {"model", "precision", "occurrences", "static", "layers", "usage"}
    assert "server-timing" in response.headers
    money, river = body["occurrences"]
    assert [money[key] for key in ("text", "start", "end")] == ["bank", 25, 29]
    assert [river[key] for key in ("text", "start", "end")] == ["bank", 16, 20]
    assert {word["text"] for word in money["contributors"][:2]} == {"check", "cashed"}
    assert river["contributors"][0]["text"] == "river"
    assert len(money["contributors"]) == 5
    assert body["static"] == [[1, 1], [1, 1]]
    assert [similarity["layer"] for similarity in body["layers"]] == list(range(7))
    for similarity in body["layers"]:
        assert np.diag(similarity["cosine"]).tolist() == np.diag(similarity["centered"]).tolist() == [1, 1]
        assert similarity["centered"][0][1] < similarity["cosine"][0][1] < 1


async def test_comparison_is_limited_to_requested_layers_and_contributors(harness: ServiceHarness) -> None:
    request = {
        "occurrences": [{"text": CASHED, "word_index": 6}, {"text": RIVER, "word_index": 4}],
        "layers": [-1, 0],
        "top_contributors": 2,
    }
    body = (await harness.post("/v1/compare", request)).json()
    assert [similarity["layer"] for similarity in body["layers"]] == [6, 0]
    assert [len(occurrence["contributors"]) for occurrence in body["occurrences"]] == [2, 2]


async def test_response_is_rejected_before_inference_when_one_byte_too_large(model: LoadedModel) -> None:
    """The message must suggest a smaller response."""
    body = {"inputs": CASHED, "encoding_format": "base64"}
    async with open_harness(model, max_response_bytes=1) as harness:
        message = (await harness.post("/v1/attend", body)).json()["error"]["message"]
    size = int(message.split("(")[1].split()[0])
    async with open_harness(model, max_response_bytes=size - 1) as harness:
        response = await harness.post("/v1/attend", body)
        assert (response.status_code, response.json()["error"]["reason"]) == (422, "RESPONSE_TOO_LARGE")
        assert 'head_reduce to "mean"' in response.json()["error"]["message"]
        assert harness.sample("attendant_batch_size_count", lane="explain") == 0
    async with open_harness(model, max_response_bytes=size) as harness:
        response = await harness.post("/v1/attend", body, **{"accept-encoding": "identity"})
        assert response.status_code == 200
        assert len(response.content) <= size


async def test_too_large_error_names_the_number_of_inputs_that_fit(model: LoadedModel) -> None:
    async with open_harness(model, max_response_bytes=60_000) as harness:
        response = await harness.post("/v1/attend", {"inputs": [CASHED] * 8, "head_reduce": "mean"})
        count = int(response.json()["error"]["message"].split("About ")[1].split()[0])
        response = await harness.post("/v1/attend", {"inputs": [CASHED] * count, "head_reduce": "mean"})
        assert response.status_code == 200


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("attend", {"layers": [1.5]}, "layers[0]: wrong type (number). Send an integer."),
        ("attend", {"heads": ["1"]}, "heads[0]: wrong type (string). Send an integer."),
        ("attend", {"layers": "last"}, 'layers: unknown value ("last"). Use "all".'),
        (
            "attend",
            {"inputs": [{"text": "a", "spans": [[1, 2, 3]]}]},
            "inputs[0].spans[0]: wrong number of items (3, required 2). Send [start, end].",
        ),
        ("attend", {"top_p": "half"}, "top_p: wrong type (string). Send a number."),
        (
            "attend",
            {"kind": "gradient"},
            'kind: unknown value ("gradient"). Use "probs", "scores", "norm", "block_norm" or "projection".',
        ),
        ("attend", {"color": "red"}, "color: unknown field. Remove it."),
        (
            "compare",
            {"occurrences": [{"text": "a", "span": [0, True]}]},
            "occurrences[0].span[1]: wrong type (boolean). Send an integer.",
        ),
        (
            "compare",
            {"occurrences": [{"text": "a", "word_index": "b"}]},
            "occurrences[0].word_index: wrong type (string). Send an integer.",
        ),
        ("compare", {"layers": [True]}, "layers[0]: wrong type (boolean). Send an integer."),
        ("compare", {"top_contributors": None}, "top_contributors: wrong type (null). Send an integer."),
    ],
)
async def test_body_is_rejected_when_invalid(
    harness: ServiceHarness, path: str, fields: dict[str, Any], message: str
) -> None:
    valid = {"inputs": "a"} if path == "attend" else {"occurrences": [{"text": "a", "word_index": 0}] * 2}
    response = await harness.post(f"/v1/{path}", {**valid, **fields})
    assert (response.status_code, response.json()["error"]["message"]) == (422, message)


async def test_attend_runs_on_the_explain_lane(harness: ServiceHarness) -> None:
    await attend(harness)
    assert harness.batches_run == 0
    assert harness.sample("attendant_batch_size_count", lane="explain") == 1
