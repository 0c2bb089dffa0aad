"""The fast lane and the explain lane: routing, independence, and the lazy session of the explain lane."""

import numpy as np
import pytest

from tests.service.conftest import ServiceHarness, encode, open_harness
from tests.shared_models import load_anew

TEXT = "He cashed a check at the bank."


async def test_fast_lane_runs_the_last_layer_only(harness: ServiceHarness) -> None:
    """The explain lane runs one text per batch."""
    for layers in ((-1,), (6,)):
        await encode(harness.engine, TEXT, layers=layers)
    assert (harness.batches_run, harness.sample("attendant_batch_size_count", lane="explain")) == (2, 0)
    await encode(harness.engine, TEXT, TEXT, layers=(3,))
    assert (harness.batches_run, harness.sample("attendant_batch_size_count", lane="explain")) == (2, 2)


async def test_explain_session_opens_at_the_first_request(harness: ServiceHarness) -> None:
    """Most servers never use it, and its weights take memory."""
    model = load_anew(harness.settings)
    async with open_harness(model) as opened:
        await encode(opened.engine, TEXT)
        assert "_session" not in vars(model.explain)
        await encode(opened.engine, TEXT, layers=(0,))
        assert "_session" in vars(model.explain)


async def test_explain_lane_yields_to_the_fast_lane(harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast lane never yields."""
    fast, explain = harness.engine.fast_lane, harness.engine.explain_lane
    assert explain is not None
    assert fast._yields_to is None
    yields_to = explain._yields_to
    assert yields_to is not None
    assert not yields_to()
    monkeypatch.setattr(type(fast), "has_queued_tasks", property(lambda lane: lane is fast))
    assert yields_to()


async def test_both_lanes_agree_on_the_last_layer(harness: ServiceHarness) -> None:
    """The tolerance depends on the fast lane's precision."""
    fast = (await encode(harness.engine, TEXT, outputs=("tokens",))).results[0].token_vectors
    both = await encode(harness.engine, TEXT, outputs=("tokens",), layers=(5, 6), layer_reduce="stack")
    explain = both.results[0].token_vectors
    assert fast is not None
    assert explain is not None
    tolerance = 1e-5 if harness.engine.info.precision == "float32" else 0.1
    np.testing.assert_allclose(explain[1], fast, atol=tolerance)
    assert both.precision == "float32"
