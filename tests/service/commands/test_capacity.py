"""Replica arithmetic: measured figures, exact fractions, limits."""

from dataclasses import replace
from fractions import Fraction

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from model.artifact.manifest import Manifest
from service.commands.size.capacity import (
    DEFAULT_MODEL,
    LOAD_MIB,
    MANIFEST_LIMIT_MIB,
    REST_MIB,
    SHAPES,
    TOKENS_PER_SECOND_PER_CORE,
    Capacity,
    Load,
    ModelShape,
    cheapest,
    memory_mib,
)
from tests.conftest import ROOT
from tests.deploy.manifests import parse_quantity
from tests.manifests import static_record

BFLOAT16 = Fraction(TOKENS_PER_SECOND_PER_CORE["bfloat16"])
POSITIVE = st.fractions(Fraction(1, 1000), 10**12)
LOADS = st.builds(
    Load, POSITIVE, st.fractions(1, 10**6), st.integers(1, 2048), st.fractions(Fraction(1, 100), 1)
)  # fmt: skip
CAPACITIES = st.builds(
    Capacity, LOADS, st.sampled_from(["cpu", "gpu"]), st.fractions(1, 10**12), st.integers(1, 1024)
)  # fmt: skip


def capacity(texts: int, tokens: int, inputs: int = 1) -> Capacity:
    """Return the capacity for a load on two cores in bfloat16 at a utilization of 0.6."""
    return Capacity(Load(Fraction(texts), Fraction(tokens), inputs, Fraction(6, 10)), "cpu", BFLOAT16, 2)


@pytest.mark.parametrize(
    ("texts", "tokens", "inputs", "replicas"),
    [
        # (texts * tokens / 13,600 + texts / inputs * (0.50 + 0.08 * inputs) ms) / 1.2
        (1_000, 16, 1, 2),
        (1_000, 128, 1, 9),
        (100_000, 16, 1, 147),
        (100_000, 128, 1, 833),
        (10_000_000, 16, 1, 14_638),
        (10_000_000, 128, 1, 83_265),
        (10_000_000, 128, 32, 79_229),
    ],
)
def test_replicas_for_documented_loads(texts: int, tokens: int, inputs: int, replicas: int) -> None:
    assert capacity(texts, tokens, inputs).replicas == replicas


@given(CAPACITIES)
def test_replicas_are_the_smallest_number_that_suffices(case: Capacity) -> None:
    """The replicas must have enough capacity for the load, and one fewer must not."""

    def suffice(replicas: int) -> bool:
        usable = replicas * case.load.utilization
        return usable * case.cores_per_replica >= case.busy_units and usable >= case.event_loop_cores

    assert suffice(case.replicas)
    assert not suffice(case.replicas - 1)
    assert case.replicas >= 1


@given(CAPACITIES, st.fractions(1, 1000), st.sampled_from(["texts_per_second", "mean_tokens"]))
def test_replicas_do_not_fall_when_the_load_grows(case: Capacity, factor: Fraction, field: str) -> None:
    larger = replace(case.load, **{field: getattr(case.load, field) * factor})
    assert replace(case, load=larger).replicas >= case.replicas


@given(CAPACITIES, st.integers(1, 100))
def test_replicas_do_not_grow_with_inputs_per_request(case: Capacity, factor: int) -> None:
    merged = replace(case.load, inputs_per_request=case.load.inputs_per_request * factor)
    assert replace(case, load=merged).replicas <= case.replicas


def test_limit_is_the_event_loop_when_compute_is_fast() -> None:
    slow = Capacity(Load(Fraction(10_000), Fraction(16), 1, Fraction(1)), "cpu", Fraction(10_000), 8)
    assert (slow.limit, slow.compute_replicas, slow.event_loop_replicas) == ("event loop", 3, 6)
    alone = replace(slow, cores_per_replica=1)
    assert (alone.limit, alone.compute_replicas, alone.event_loop_replicas) == ("compute", 22, 6)


def test_event_loop_carries_1700_requests_of_one_text_per_second() -> None:
    full = Capacity(Load(Fraction(1_724), Fraction(1), 1, Fraction(1)), "gpu", Fraction(10**9), 1)
    assert full.event_loop_replicas == 1
    assert replace(full, load=replace(full.load, texts_per_second=Fraction(1_725))).event_loop_replicas == 2


def test_event_loops_that_suffice_exactly_need_no_further_replica() -> None:
    """5,000 x 0.58 ms take 2.9 cores, i.e. three event loops at 29/30."""
    exact = Capacity(Load(Fraction(5_000), Fraction(1), 1, Fraction(29, 30)), "gpu", Fraction(10**9), 1)
    assert exact.event_loop_replicas == 3


@given(LOADS, st.fractions(1, 10**9), st.integers(0, 5))
def test_cheapest_shape_has_the_fewest_cores(load: Load, rate: Fraction, spare: int) -> None:
    best = cheapest(load, rate, spare)
    for cores in SHAPES:
        shape = Capacity(load, "cpu", rate, cores, spare)
        assert (best.total_units, best.total_replicas) <= (shape.total_units, shape.total_replicas)
    assert best.total_replicas == best.replicas + spare


def test_large_replicas_are_not_chosen_when_event_loops_are_the_limit() -> None:
    """With eight cores each, the event loops would leave most cores idle."""
    load = Load(Fraction(14_000), Fraction(8), 1, Fraction(6, 10))
    best, large = cheapest(load, BFLOAT16, 0), Capacity(load, "cpu", BFLOAT16, 8)
    assert (large.limit, large.total_units) == ("event loop", 112)
    assert (best.cores_per_replica, best.total_units) == (2, 28)


@pytest.mark.parametrize(
    ("tokens", "inputs", "measured"), [(23, 1, 986), (23, 32, 1185), (171, 8, 140)], ids=["W1 c=64", "W32", "P8"]
)
def test_figures_agree_with_the_bench(tokens: int, inputs: int, measured: int) -> None:
    """The throughput on two cores must be within 15 % of bench/README.md."""
    rate = BFLOAT16 * DEFAULT_MODEL.flops_per_token(Fraction(23)) / DEFAULT_MODEL.flops_per_token(Fraction(tokens))
    case = Capacity(Load(Fraction(1), Fraction(tokens), inputs, Fraction(1)), "cpu", rate, 2)
    assert 2 / case.busy_units == pytest.approx(measured, rel=0.15)


def test_default_model_is_the_default_artifact(manifest: Manifest) -> None:
    assert ModelShape.of(manifest) == DEFAULT_MODEL


def test_weights_stored_in_16_bits_count_as_float32(manifest: Manifest) -> None:
    static = static_record(manifest).model_copy(update={"dtype": "bfloat16"})
    shape = ModelShape.of(manifest.model_copy(update={"static": static}))
    assert shape.weights_mib == 2 * DEFAULT_MODEL.weights_mib


def test_flops_per_token_counts_weights_and_attention() -> None:
    """MiniLM-L6 has 10.6 million weights in its layers; attention over a row of 128 tokens adds 6 %."""
    weights = 6 * 12 * 384**2
    assert DEFAULT_MODEL.flops_per_token(Fraction(1)) == 2 * weights + 6 * 4 * 128 * 384
    assert DEFAULT_MODEL.flops_per_token(Fraction(256)) == 2 * weights + 6 * 4 * 256 * 384


def test_memory_is_the_high_water_mark_of_the_default_model_and_grows_with_weights() -> None:
    larger = replace(DEFAULT_MODEL, weights_mib=DEFAULT_MODEL.weights_mib + 100)
    assert memory_mib(DEFAULT_MODEL) == REST_MIB + LOAD_MIB == 772
    assert memory_mib(larger) > 872


def test_memory_limit_matches_the_manifests() -> None:
    deployment = yaml.safe_load((ROOT / "deploy/overlays/cpu/deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert parse_quantity(container["resources"]["limits"]["memory"]) == MANIFEST_LIMIT_MIB * 2**20
