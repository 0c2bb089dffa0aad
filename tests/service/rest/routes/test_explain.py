"""The native door's explanations: /v1/attend and /v1/compare as API.md writes them."""

import base64
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from service.engine.model_loader import LoadedModel
from tests.service.conftest import House, open_house

CASHED = "He cashed a check at the bank."
RIVER = "They sat on the bank of the river."
FIELDS = {"layer", "head", "matrix", "excluded_mass", "bias_share", "no_mass_rows"}


async def attend(house: House, inputs: object = CASHED, **fields: Any) -> dict[str, Any]:
    answer = await house.post("/v1/attend", {"inputs": inputs, **fields})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()["results"][0]
    return result


def tensor(field: dict[str, Any]) -> NDArray[Any]:
    types = {"float32": "<f4", "float16": "<f2", "sqrt_uint8": "u1"}
    return np.frombuffer(base64.b64decode(field["data"]), types[field["dtype"]]).reshape(field["shape"])


async def test_response_has_the_fields_of_the_contract(house: House) -> None:
    """By default every layer's and head's probabilities, over tokens."""
    answer = await house.post("/v1/attend", {"inputs": CASHED})
    found = answer.json()
    assert set(found) == {"model", "precision", "results"}
    assert (found["model"], found["precision"]) == ("all-MiniLM-L6-v2", "float32")
    assert answer.headers["x-attendant-model"] == f"all-MiniLM-L6-v2@{house.engine.info.digest}"
    (result,) = found["results"]
    assert set(result) == {"truncated", "units", "rows", "columns", "maps"}
    assert result["units"][2] == {"text": "cash", "start": 3, "end": 7, "segment": 0, "special": False}
    assert [unit["special"] for unit in result["units"]] == [True] + [False] * 9 + [True]
    assert result["rows"] == result["columns"] == list(range(11))
    assert [(each["layer"], each["head"]) for each in result["maps"]] == [
        (layer, head) for layer in range(1, 7) for head in range(12)
    ]
    assert all(set(each) == FIELDS for each in result["maps"])
    assert np.shape([each["matrix"] for each in result["maps"]]) == (72, 11, 11)


async def test_attention_of_the_train_sentence_is_as_documented(house: House) -> None:
    """Seven words; renormalised rows sum to 1, dropped ones to 1 less what the special tokens had."""
    text = "the train left the station on time"
    whole = await attend(house, text, unit="word", special="renormalize", head_reduce="mean", layers=[6])
    kept = await attend(house, text, unit="word", special="drop", head_reduce="mean", layers=[6])
    (ours,), (theirs,) = whole["maps"], kept["maps"]
    assert [unit["text"] for unit in whole["units"]] == text.split()
    assert np.shape(ours["matrix"]) == (7, 7)
    np.testing.assert_allclose(np.sum(ours["matrix"], axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(np.sum(theirs["matrix"], axis=1) + theirs["excluded_mass"], 1, atol=1e-5)
    assert min(theirs["excluded_mass"]) > 0.1


async def test_comparison_names_contributors_of_bank(house: House) -> None:
    """The two words that explain it, itself left out."""
    found = await attend(house, kind="projection", layer_reduce="rollout", unit="word", special="drop")
    names = [unit["text"] for unit in found["units"]]
    row = dict(zip(names, found["maps"][0]["matrix"][names.index("bank")], strict=True))
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
async def test_maps_are_those_requested(house: House, fields: dict[str, Any], expected: list[object]) -> None:
    """In the order asked for; null where reduced."""
    found = await attend(house, **fields)
    assert [(each["layer"], each["head"]) for each in found["maps"]] == expected


async def test_inputs_have_their_own_units(house: House) -> None:
    """A text, a pair with its segments, and ids."""
    inputs = [CASHED, {"text": "river bank", "pair": "flows"}, {"token_ids": [2924]}]
    answer = (await house.post("/v1/attend", {"inputs": inputs, "layers": [1], "heads": [0]})).json()["results"]
    assert [[unit["segment"] for unit in result["units"]] for result in answer] == [
        [0] * 11,
        [0, 0, 0, 0, 1, 1],
        [0, 0, 0],
    ]
    assert [unit["text"] for unit in answer[2]["units"]] == ["[CLS]", "bank", "[SEP]"]


async def test_pair_segments_select_rows_and_columns(house: House) -> None:
    """Rows of one text, columns of the other, and the rest of each row told."""
    pair = [{"text": "river bank", "pair": "it flows"}]
    found = await attend(house, pair, segments="a_to_b", special="drop", layers=[3], head_reduce="mean")
    assert (found["rows"], found["columns"]) == ([0, 1], [2, 3])
    (each,) = found["maps"]
    assert np.shape(each["matrix"]) == (2, 2)
    np.testing.assert_allclose(np.sum(each["matrix"], axis=1) + each["excluded_mass"], 1, atol=1e-5)


@pytest.mark.parametrize(("dtype", "loss"), [("float32", 0), ("float16", 5e-4), ("sqrt_uint8", 4e-3)])
async def test_base64_is_the_same_numbers(house: House, dtype: str, loss: float) -> None:
    """In the element type asked for; sqrt_uint8 is the square of q / 255."""
    plain = await attend(house, layers=[2], heads=[7])
    coded = await attend(house, layers=[2], heads=[7], encoding="base64", dtype=dtype)
    values = tensor(coded["maps"][0]["matrix"])
    found = (values / 255.0) ** 2 if dtype == "sqrt_uint8" else values.astype(float)
    np.testing.assert_allclose(found, plain["maps"][0]["matrix"], atol=loss + 1e-9)


async def test_sparse_rows(house: House) -> None:
    """The largest first, by units, and what was left out; the same in base64."""
    dense = np.array((await attend(house, layers=[2], heads=[7]))["maps"][0]["matrix"])
    sparse = (await attend(house, layers=[2], heads=[7], top_p=0.7, top_k=5))["maps"][0]["matrix"]
    coded = (await attend(house, layers=[2], heads=[7], top_p=0.7, top_k=5, encoding="base64"))["maps"][0]["matrix"]
    for row, (indices, values) in enumerate(zip(sparse["indices"], sparse["values"], strict=True)):
        assert indices == np.argsort(-dense[row])[: len(indices)].tolist()
        np.testing.assert_allclose(values, dense[row][indices], atol=1e-7)
        assert len(indices) == 5 or sum(values) >= 0.7
        assert sum(values) + sparse["rest_mass"][row] == pytest.approx(1, abs=1e-5)
    assert coded["indices"] == sparse["indices"]
    np.testing.assert_allclose(tensor(coded["values"]), np.concatenate(sparse["values"]), atol=1e-7)


async def test_decimals(house: House) -> None:
    """Rounded, and so a shorter answer."""
    found = (await attend(house, layers=[2], heads=[7], decimals=2))["maps"][0]
    assert {value for row in found["matrix"] for value in row} <= {round(number / 100, 2) for number in range(101)}


async def test_comparison_has_the_fields_of_the_contract(house: House) -> None:
    """Two uses of a word: by its characters, and by its index."""
    body = {"occurrences": [{"text": CASHED, "span": [25, 29]}, {"text": RIVER, "word": 4}]}
    answer = await house.post("/v1/compare", body)
    found = answer.json()
    assert set(found) == {"model", "precision", "occurrences", "static", "layers"}
    assert "server-timing" in answer.headers
    money, river = found["occurrences"]
    assert [money[key] for key in ("text", "start", "end")] == ["bank", 25, 29]
    assert [river[key] for key in ("text", "start", "end")] == ["bank", 16, 20]
    assert {word["text"] for word in money["draws_on"][:2]} == {"check", "cashed"}
    assert river["draws_on"][0]["text"] == "river"
    assert len(money["draws_on"]) == 5
    assert found["static"] == [[1, 1], [1, 1]]
    assert [each["layer"] for each in found["layers"]] == list(range(7))
    for each in found["layers"]:
        assert np.diag(each["cosine"]).tolist() == np.diag(each["centered"]).tolist() == [1, 1]
        assert each["centered"][0][1] < each["cosine"][0][1] < 1


async def test_comparison_is_limited_to_requested_layers(house: House) -> None:
    """In the order asked for, from either end; and as many words as asked."""
    body = {"occurrences": [{"text": CASHED, "word": 6}, {"text": RIVER, "word": 4}], "layers": [-1, 0], "draws_on": 2}
    found = (await house.post("/v1/compare", body)).json()
    assert [each["layer"] for each in found["layers"]] == [6, 0]
    assert [len(each["draws_on"]) for each in found["occurrences"]] == [2, 2]


async def test_response_is_rejected_before_inference_when_one_byte_too_large(model: LoadedModel) -> None:
    """The size is known before anything runs; the message says how to have it smaller."""
    body = {"inputs": CASHED, "encoding": "base64"}
    async with open_house(model, max_response_bytes=1) as house:
        message = (await house.post("/v1/attend", body)).json()["error"]["message"]
    size = int(message.split("up to ")[1].split()[0])
    async with open_house(model, max_response_bytes=size - 1) as house:
        refused = await house.post("/v1/attend", body)
        assert (refused.status_code, refused.json()["error"]["reason"]) == (422, "response_too_large")
        assert 'head_reduce: "mean"' in refused.json()["error"]["message"]
        assert house.sample("attendant_batch_size_count", lane="explain") == 0
    async with open_house(model, max_response_bytes=size) as house:
        answer = await house.post("/v1/attend", body, **{"accept-encoding": "identity"})
        assert answer.status_code == 200
        assert len(answer.content) <= size


async def test_too_large_error_says_how_many_inputs_fit(model: LoadedModel) -> None:
    """For a caller that can split its request."""
    async with open_house(model, max_response_bytes=60_000) as house:
        refused = await house.post("/v1/attend", {"inputs": [CASHED] * 8, "head_reduce": "mean"})
        fitting = int(refused.json()["error"]["message"].split("About ")[1].split()[0])
        answer = await house.post("/v1/attend", {"inputs": [CASHED] * fitting, "head_reduce": "mean"})
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("attend", {"layers": [1.5]}, "layers[0]: wrong type (number). Send an integer."),
        ("attend", {"heads": ["1"]}, "heads[0]: wrong type (string). Send an integer."),
        ("attend", {"layers": "last"}, 'layers: unknown value. Use "all".'),
        (
            "attend",
            {"inputs": [{"text": "a", "spans": [[1, 2, 3]]}]},
            "inputs[0].spans[0]: wrong number of items (3). Send [start, end].",
        ),
        ("attend", {"top_p": "half"}, "top_p: wrong type (string). Send a number."),
        (
            "attend",
            {"kind": "gradient"},
            'kind: unknown value. Use "probs", "scores", "norm", "block_norm" or "projection".',
        ),
        ("attend", {"colour": "red"}, "colour: unknown field. Remove it."),
        (
            "compare",
            {"occurrences": [{"text": "a", "span": [0, True]}]},
            "occurrences[0].span[1]: wrong type (boolean). Send an integer.",
        ),
        (
            "compare",
            {"occurrences": [{"text": "a", "word": "b"}]},
            "occurrences[0].word: wrong type (string). Send an integer.",
        ),
        ("compare", {"layers": [True]}, "layers[0]: wrong type (boolean). Send an integer."),
        ("compare", {"draws_on": None}, "draws_on: wrong type (null). Send an integer."),
    ],
)
async def test_body_is_rejected_when_invalid(house: House, path: str, fields: dict[str, Any], message: str) -> None:
    """The field by the path that the caller wrote, and what it takes."""
    whole = {"inputs": "a"} if path == "attend" else {"occurrences": [{"text": "a", "word": 0}] * 2}
    refused = await house.post(f"/v1/{path}", {**whole, **fields})
    assert (refused.status_code, refused.json()["error"]["message"]) == (422, message)


async def test_maps_never_run_on_the_fast_lane(house: House) -> None:
    """Its rows are counted apart."""
    await attend(house)
    assert house.batches_run == 0
    assert house.sample("attendant_batch_size_count", lane="explain") == 1


@pytest.mark.parametrize("path", ["/v1/attend", "/v1/compare"])
def test_openapi_schema_describes_the_body(rest: httpx.Client, path: str) -> None:
    """With every field and every value that it takes."""
    schema = rest.get("/openapi.json").json()
    reference = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    body = schema["components"]["schemas"][reference.rpartition("/")[2]]
    assert {"inputs", "kind", "layer_reduce"} <= set(body["properties"]) or {"occurrences", "draws_on"} <= set(
        body["properties"]
    )
