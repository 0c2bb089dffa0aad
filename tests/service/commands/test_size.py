"""`attendant size`: output, JSON, options and errors."""

import json
import re
import threading
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from model.artifact.manifest import Manifest
from model.source import model_size
from model.source.known_models import KNOWN_MODELS
from model.source.model_size import describe_export, estimate_size
from service.commands.size import (
    DEFAULT_MODEL,
    MANIFEST_LIMIT_MIB,
    SHAPES,
    TOKENS_PER_SECOND_PER_CORE,
    Capacity,
    Load,
    ModelShape,
    cheapest,
)
from tests.conftest import ROOT
from tests.deploy.manifests import parse_quantity
from tests.manifests import static_record
from tests.model.hub_server import HubServer, Repository
from tests.service.commands.running import run_command

BFLOAT16 = Fraction(TOKENS_PER_SECOND_PER_CORE["bfloat16"])
POSITIVE = st.fractions(Fraction(1, 1000), 10**12)
LOADS = st.builds(
    Load, POSITIVE, st.fractions(1, 10**6), st.integers(1, 2048), st.fractions(Fraction(1, 100), 1)
)  # fmt: skip
CAPACITIES = st.builds(
    Capacity, LOADS, st.sampled_from(["cpu", "gpu"]), st.fractions(1, 10**12), st.integers(1, 1024)
)  # fmt: skip
LOAD = ("--texts-per-second", "100000", "--mean-tokens", "16")


def size(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status, out, err = run_command(capsys, "size", *arguments)
    assert (status, err) == (0, "")
    return out


def test_size_prints_each_step_of_the_calculation(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [re.split(r" {2,}|= ", line) for line in size(capsys, *LOAD).splitlines()]
    steps = {line[0]: [part.strip() for part in line[1:] if part.strip()] for line in lines}
    assert steps["tokens"] == ["1,600,000 tokens/s", "100,000 texts/s x 16 tokens"]
    assert steps["throughput"][0] == "13,600 tokens/s per core"
    assert steps["inference"] == ["117.6 cores busy", "tokens / throughput"]
    assert steps["event loop"] == ["58 cores busy", "100,000 requests/s x 0.58 ms"]
    assert steps["compute"] == ["147 replicas", "(117.6 + 58) / (0.6 utilization x 2 cores)"]
    assert steps["event loops"] == ["97 replicas", "58 / (0.6 utilization x 1 core per process)"]
    assert steps["replicas"] == ["148 replicas", "147 (the limit is compute) + 1 spare"]
    assert steps["memory"][0] == "772 MiB per replica"
    assert steps["total"] == ["296 cores, 296 GiB reserved"]


@pytest.mark.parametrize("precision", ["bfloat16", "float32", "int8"])
def test_json_has_the_same_result(capsys: pytest.CaptureFixture[str], precision: str) -> None:
    arguments = (*LOAD, "--precision", precision)
    text = size(capsys, *arguments)
    record = json.loads(size(capsys, *arguments, "--json"))
    assert f"{record['replicas']:,} replicas" in text
    assert record["tokens_per_second_per_unit"] == TOKENS_PER_SECOND_PER_CORE[precision]
    assert (record["limit"], record["tokens_per_second_needed"]) == ("compute", 1_600_000)


@pytest.mark.parametrize(
    ("arguments", "replicas"),
    [
        (("--utilization", "1"), 89),  # 175.6 cores / 2, plus a spare replica, as everywhere below
        (("--cores-per-replica", "8"), 98),  # event loops: 58 cores / 0.6
        (("--cores-per-replica", "8", "--workers", "2"), 50),  # event loops: 58 cores / 1.2
        (("--inputs-per-request", "32"), 108),  # (117.6 + 9.6 cores) / 1.2
        (("--tokens-per-second-per-core", "27200"), 99),  # (58.8 + 58 cores) / 1.2
        (("--tokens-per-second", "27200"), 148),  # on two cores, so 13,600 each
        (("--hardware", "gpu", "--tokens-per-second", "1e6"), 98),  # 1.6 busy GPUs, event loops as above
        (("--spare-replicas", "0"), 147),
    ],
)
def test_options_change_the_number_of_replicas(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], replicas: int
) -> None:
    assert json.loads(size(capsys, *LOAD, *arguments, "--json"))["replicas"] == replicas


def test_decimals_are_exact(capsys: pytest.CaptureFixture[str]) -> None:
    """In binary floating point, 2.1 / 0.3 exceeds 7, which would add a replica."""
    load = ("--texts-per-second", "2.1", "--mean-tokens", "100", "--tokens-per-second", "100", "--hardware", "gpu")
    assert json.loads(size(capsys, *load, "--utilization", "0.3", "--spare-replicas", "0", "--json"))["replicas"] == 7
    assert 2.1 / 0.3 > 7


def test_model_dir_scales_the_throughput_by_flops(capsys: pytest.CaptureFixture[str], default_artifact: Path) -> None:
    """The default artifact is not scaled for texts up to the row length. Longer texts reduce its throughput."""
    assert size(capsys, *LOAD, "--model-dir", str(default_artifact)) == size(capsys, *LOAD)
    long = size(capsys, "--texts-per-second", "1", "--mean-tokens", "256", "--model-dir", str(default_artifact))
    assert "13,600 (bfloat16" in long
    assert "22.41 / 23.59 MFLOP per token, estimated" in long


def test_parameters_of_published_models_follow_from_their_config() -> None:
    """The numbers on model cards, without weights."""
    for model in KNOWN_MODELS:
        estimate = estimate_size(model.hub_id, model.config, model.max_input_tokens)
        assert estimate.parameters == pytest.approx(model.millions * 1e6, rel=0.006), model.hub_id
        assert estimate.num_hidden_layers == model.shape[0]


def test_config_alone_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory, a model of the hub and a well-known one of the same shape need the same."""
    (known,) = (model for model in KNOWN_MODELS if model.hub_id == "BAAI/bge-base-en-v1.5")
    files = {"config.json": json.dumps(known.config), "sentence_bert_config.json": '{"max_seq_length": 200}'}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    load = ("--texts-per-second", "100", "--json")
    expected = size(capsys, known.hub_id, *load)
    assert size(capsys, str(tmp_path), *load) == expected
    with HubServer() as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.repositories["owner/name"] = Repository({name: content.encode() for name, content in files.items()})
        assert size(capsys, "owner/name", *load) == expected
        for source, message in (
            ("owner/missing", "answered 401. Check the name, or set HF_TOKEN to a token with access."),
            ("owner/name", "--mean-tokens: over the token limit of owner/name (300, limit 200)"),
        ):
            status, _, err = run_command(capsys, "size", source, *load, "--mean-tokens", "300")
            assert (status in (2, 78), message in err) == (True, True), err
        hub.shutdown()
    status, _, err = run_command(capsys, "size", "owner/name", *load)
    assert (status, "is unreachable" in err) == (78, True)


@pytest.mark.parametrize("change", [{"num_attention_heads": 0}, {"hidden_size": -4}, {"vocab_size": "many"}])
def test_config_without_a_number_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, change: dict[str, object]
) -> None:
    (name,) = change
    (tmp_path / "config.json").write_text(json.dumps({**KNOWN_MODELS[0].config, **change}))
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": "long"}')
    status, _, err = run_command(capsys, "size", str(tmp_path), "--texts-per-second", "1")
    assert (status, f"{name} is not a positive number in config.json" in err) == (78, True), err


def test_gpu_is_estimated_from_a_measured_one(capsys: pytest.CaptureFixture[str]) -> None:
    load = ("--texts-per-second", "100000", "--mean-tokens", "24", "--hardware", "gpu", "--json")
    small, large = (json.loads(size(capsys, name, *load)) for name in ("BAAI/bge-base-en-v1.5", "BAAI/bge-m3"))
    assert small["tokens_per_second_per_unit"] == pytest.approx(1_570_000)
    assert 3 < small["tokens_per_second_per_unit"] / large["tokens_per_second_per_unit"] < 4
    assert large["gpu_memory_mib_per_replica"] > small["gpu_memory_mib_per_replica"] > 1536


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--texts-per-second", "0"), "--texts-per-second: out of range (0, minimum 1e-3). Use 1e-3 to 1e12"),
        (("--texts-per-second", "-5"), "--texts-per-second: out of range (-5, minimum 1e-3). Use 1e-3 to 1e12"),
        (("--texts-per-second", "nan"), '--texts-per-second: not a number ("nan"). Use 1e-3 to 1e12'),
        (("--texts-per-second", "inf"), "--texts-per-second: out of range (inf, limit 1e12). Use 1e-3 to 1e12"),
        (("--texts-per-second", "1e999999999"), "--texts-per-second: out of range (inf, limit 1e12)"),
        (("--texts-per-second", "many"), '--texts-per-second: not a number ("many")'),
        (("--mean-tokens", "0.5"), "--mean-tokens: out of range (0.5, minimum 1). Use 1 to 1e6"),
        (("--mean-tokens", "300"), "--mean-tokens: over the token limit of all-MiniLM-L6-v2 (300, limit 256)"),
        (("--mean-tokens", "30", "--max-tokens", "20"), "(30, limit 20)"),
        (("--inputs-per-request", "1.5"), "--inputs-per-request: not an integer (1.5). Use 1 to 2048"),
        (("--utilization", "1.1"), "--utilization: out of range (1.1, limit 1). Use 0.01 to 1"),
        (("--precision", "fp8"), "--precision: invalid choice: 'fp8'"),
        (("x", "--model-dir", "y"), "--model-dir: set together with SOURCE. Remove one of them"),
        (("--tokens-per-second", "1", "--tokens-per-second-per-core", "1"), "not allowed with argument"),
        (("--cores", "2"), "unknown option --cores"),
    ],
)
def test_invalid_option_is_named_with_its_limit(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    status, out, err = run_command(capsys, "size", *LOAD, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("attendant size: ")
    assert message in err
    assert err.endswith("See: attendant size --help\n")


@given(CAPACITIES)
def test_replicas_are_the_smallest_number_that_suffices(case: Capacity) -> None:
    """The replicas must have enough capacity for the load, and one fewer must not."""

    def suffice(replicas: int) -> bool:
        usable = replicas * case.load.utilization
        return usable * case.cores_per_replica >= case.busy_units and usable >= case.event_loop_cores

    assert suffice(case.replicas)
    assert not suffice(case.replicas - 1)
    assert case.replicas >= 1


@given(LOADS, st.fractions(1, 10**9), st.integers(0, 5))
def test_cheapest_shape_has_the_fewest_cores(load: Load, rate: Fraction, spare: int) -> None:
    best = cheapest(load, rate, spare)
    for cores in SHAPES:
        shape = Capacity(load, "cpu", rate, cores, spare)
        assert (best.total_units, best.total_replicas) <= (shape.total_units, shape.total_replicas)
    assert best.total_replicas == best.replicas + spare


@pytest.mark.parametrize(
    ("tokens", "inputs", "measured"), [(23, 1, 986), (23, 32, 1185), (171, 8, 140)], ids=["W1 c=64", "W32", "P8"]
)
def test_figures_agree_with_the_bench(tokens: int, inputs: int, measured: int) -> None:
    """The throughput on two cores must be within 15% of bench/README.md."""
    rate = BFLOAT16 * DEFAULT_MODEL.flops_per_token(Fraction(23)) / DEFAULT_MODEL.flops_per_token(Fraction(tokens))
    case = Capacity(Load(Fraction(1), Fraction(tokens), inputs, Fraction(1)), "cpu", rate, 2)
    assert 2 / case.busy_units == pytest.approx(measured, rel=0.15)


def test_default_model_is_the_default_artifact(manifest: Manifest) -> None:
    assert ModelShape.of(manifest) == DEFAULT_MODEL


def test_weights_stored_in_16_bits_count_as_float32(manifest: Manifest) -> None:
    static = static_record(manifest).model_copy(update={"dtype": "bfloat16"})
    shape = ModelShape.of(manifest.model_copy(update={"static": static}))
    assert shape.weights_mib == 2 * DEFAULT_MODEL.weights_mib


def test_memory_limit_matches_the_manifests() -> None:
    deployment = yaml.safe_load((ROOT / "deploy/overlays/cpu/deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert parse_quantity(container["resources"]["limits"]["memory"]) == MANIFEST_LIMIT_MIB * 2**20


def test_export_of_a_large_model_warns_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hidden states of 512 tokens take 0.3 GB, and so does the table; four copies of each, and half a GiB."""
    config = {
        "model_type": "llama", "vocab_size": 32_000, "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "intermediate_size": 11_008,
    }  # fmt: skip
    size = estimate_size("large", config)
    monkeypatch.setattr(model_size, "available_memory", lambda: 2**31)
    warning = describe_export(size)
    assert warning.startswith("warning: estimate: 6,607 M parameters; the export takes about 2.5 GiB of memory, and")
    assert warning.endswith("Only 2.0 GiB of memory are available, so the export may fail.")
    monkeypatch.setattr(model_size, "available_memory", lambda: 2**40)
    assert describe_export(size).startswith("estimate: 6,607 M parameters; ")
    assert "takes about 64.0 GiB of memory" in describe_export(size, maps_weights=False)
    albert = config | {"model_type": "albert", "embedding_size": 128, "num_hidden_groups": 1}
    assert "estimate: 162 M parameters; the export takes about 1.6 GiB" in describe_export(estimate_size("a", albert))
