"""The lanes: what each is asked, that they do not stand in each other's way, and that the second opens late."""

import numpy as np
import pytest

from service.engine.model_loader import LoadedModel
from service.errors import QueueFull
from tests.service.conftest import House, encode, open_house

TEXT = "He cashed a check at the bank."


async def test_the_last_layer_runs_on_the_fast_lane(house: House) -> None:
    """However it is spelled; another layer runs on the explain lane, one text a row."""
    for layers in ((-1,), (6,)):
        await encode(house.engine, TEXT, layers=layers)
    assert (house.batches_run, house.sample("attendant_batch_size_count", lane="explain")) == (2, 0)
    await encode(house.engine, TEXT, TEXT, layers=(3,))
    assert (house.batches_run, house.sample("attendant_batch_size_count", lane="explain")) == (2, 2)


async def test_the_explain_graph_is_opened_when_it_is_first_asked(house: House) -> None:
    """Most servers never need it, and its weights take memory."""
    model = LoadedModel.load(house.settings)
    async with open_house(model) as opened:
        await encode(opened.engine, TEXT)
        assert "_session" not in vars(model.explain)
        await encode(opened.engine, TEXT, layers=(0,))
        assert "_session" in vars(model.explain)


async def test_each_lane_has_its_own_queue(model: LoadedModel) -> None:
    """A full one refuses, and the other goes on."""
    async with open_house(model, max_explain_queue_tokens=1) as opened:
        with opened.engine._explain.reserve(1):
            with pytest.raises(QueueFull):
                await encode(opened.engine, TEXT, layers=(2,))
            assert (await encode(opened.engine, TEXT)).token_count == 11


async def test_explain_lane_yields_to_the_fast_lane(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """While tasks wait in the fast lane, and never the other way round."""
    fast, explain = house.engine._fast, house.engine._explain
    assert not explain._yields_to()
    monkeypatch.setattr(type(fast), "busy", property(lambda lane: lane is fast))
    assert explain._yields_to()
    monkeypatch.setattr(type(fast), "busy", property(lambda lane: lane is explain))
    assert not fast._yields_to()


async def test_both_lanes_agree_on_the_last_layer(house: House) -> None:
    """Up to the precision of the fast one."""
    fast = (await encode(house.engine, TEXT, outputs=("tokens",))).results[0].token_vectors
    both = await encode(house.engine, TEXT, outputs=("tokens",), layers=(5, 6), layer_reduce="stack")
    explain = both.results[0].token_vectors
    assert fast is not None
    assert explain is not None
    tolerance = 1e-5 if house.engine.info.precision == "float32" else 0.1
    np.testing.assert_allclose(explain.values[1], fast.values, atol=tolerance)
    assert both.precision == "float32"
