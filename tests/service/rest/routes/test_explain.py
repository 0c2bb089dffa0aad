"""/v1/attend, as documented in docs/api.md."""

import base64
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.engine.model_loader import LoadedModel
from tests.service.conftest import ServiceHarness, open_harness

CASHED = "He cashed a check at the bank."


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


async def test_outputs_are_the_steps_inside_the_layers(harness: ServiceHarness) -> None:
    """Queries, keys and values of two heads, for two tokens, in place of maps."""
    names = ["queries", "keys", "values", "scores", "weights", "heads"]
    result = await attend(harness, outputs=names, layers=[-1, 2], heads=[3, 0], rows=[8, 2])
    assert (result["rows"], result["columns"], result["maps"]) == ([8, 2], [*range(11)], [])
    maps = (await attend(harness, layers=[6, 2], heads=[3, 0]))["maps"]
    for index, layer in enumerate(result["layer_outputs"]):
        assert (layer["layer"], layer["heads_of"]) == ((6, 2)[index], [3, 0])
        assert set(layer) == {"layer", "heads_of", *names}
        step = {name: np.array(layer[name]) for name in names}
        np.testing.assert_allclose(step["queries"] @ step["keys"].swapaxes(1, 2) / 32**0.5, step["scores"], atol=1e-5)
        powers = np.exp(step["scores"])
        np.testing.assert_allclose(powers / powers.sum(axis=-1, keepdims=True), step["weights"], atol=1e-6)
        np.testing.assert_allclose(step["weights"] @ step["values"], step["heads"], atol=1e-6)
        for head in (0, 1):
            whole = np.array(maps[2 * index + head]["matrix"])
            np.testing.assert_allclose(step["weights"][head], whole[[8, 2]], atol=1e-6)
    encoded = await attend(harness, outputs=["output"], rows=[8], encoding_format="base64", dtype="float16")
    assert tensor(encoded["layer_outputs"][0]["output"]).shape == (1, 384)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "norm"}, "kind: not supported with outputs. Leave it out."),
        ({"unit": "word"}, "unit: not supported with outputs. Leave it out."),
        ({"top_k": 3}, "top_k: not supported with outputs. Leave it out."),
        ({"layer_reduce": "mean"}, "layer_reduce: not supported with outputs. Leave it out."),
        ({"rows": [11]}, "rows[0]: out of range for inputs[0] (11). Use 0 to 10."),
        ({"rows": [1, 1]}, "rows: contains the same item twice. Remove one."),
        ({"rows": []}, "rows: empty. Leave it out or name at least one."),
        ({"outputs": []}, "rows: set, but outputs is empty. Leave it out, or set outputs."),
        (
            {"dtype": "sqrt_uint8", "encoding_format": "base64"},
            'dtype: "sqrt_uint8" is not supported with outputs. Use "float16".',
        ),
        (
            {"outputs": ["bias"]},
            'outputs: "bias" is not supported for this model, whose scores have no bias for positions. Remove it.',
        ),
    ],
)
async def test_outputs_reject_options_of_maps_and_invalid_rows(
    harness: ServiceHarness, fields: dict[str, Any], message: str
) -> None:
    body = {"inputs": CASHED, "outputs": ["queries"], "rows": [0], **fields}
    response = await harness.post("/v1/attend", body)
    assert (response.status_code, response.json()["error"]["message"]) == (422, message)


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


async def test_too_large_error_names_the_number_of_inputs_that_fit(model: LoadedModel) -> None:
    async with open_harness(model, max_response_bytes=60_000) as harness:
        response = await harness.post("/v1/attend", {"inputs": [CASHED] * 8, "head_reduce": "mean"})
        count = int(response.json()["error"]["message"].split("About ")[1].split()[0])
        response = await harness.post("/v1/attend", {"inputs": [CASHED] * count, "head_reduce": "mean"})
        assert response.status_code == 200
