"""Backend selection, with recorded features of several machines."""

from typing import Any

import pytest

from model.artifact.names import PADDED
from service.config import ConfigError
from service.engine.backends.base import BackendChoice, Gpu
from service.engine.backends.cpu import CpuFeatures
from service.engine.backends.select import BackendOptions, Machine, explain_choice, select_backend

GRANITE_RAPIDS = "avx2 avx512f avx512_vnni avx512_bf16 avx_vnni amx_bf16 amx_tile amx_int8 avx512_fp16"
ZEN_5 = "avx2 avx512f avx512_vnni avx512_bf16 avx_vnni avx512_vbmi2"
SAPPHIRE_RAPIDS_WITHOUT_AMX = "avx2 avx512f avx512_vnni avx512_bf16 avx_vnni avx512_fp16"
"""The features that some virtual machines expose."""
ICE_LAKE = "avx2 avx512f avx512_vnni avx512_vbmi2"
HASWELL = "avx2 fma bmi2"
FAST = ("fast", "explain")


def machine(flags: str, **facts: Any) -> Machine:
    vendor = "AuthenticAMD" if flags == ZEN_5 else "GenuineIntel"
    cpu = CpuFeatures.of(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu {flags} sse\n")
    return Machine(**{"cpu": cpu, "cpus": 2, "openvino": True, "cuda_build": False, "gpus": 0, **facts})


def select(flags: str, graphs: tuple[str, ...] = FAST, facts: dict[str, Any] | None = None, **options: Any) -> Any:
    return select_backend(BackendOptions(**options), dict.fromkeys(graphs, "float32"), machine(flags, **facts or {}))


@pytest.mark.parametrize(
    ("flags", "features"),
    [
        (GRANITE_RAPIDS, CpuFeatures(amx_bfloat16=True, bfloat16=True, fast_bfloat16=True, vnni=True)),
        (ZEN_5, CpuFeatures(amx_bfloat16=False, bfloat16=True, fast_bfloat16=True, vnni=True)),
        (SAPPHIRE_RAPIDS_WITHOUT_AMX, CpuFeatures(amx_bfloat16=False, bfloat16=True, fast_bfloat16=False, vnni=True)),
        (ICE_LAKE, CpuFeatures(amx_bfloat16=False, bfloat16=False, fast_bfloat16=False, vnni=True)),
        (HASWELL, CpuFeatures(amx_bfloat16=False, bfloat16=False, fast_bfloat16=False, vnni=False)),
    ],
)
def test_features_are_read_from_cpuinfo(flags: str, features: CpuFeatures) -> None:
    assert machine(flags).cpu == features


def test_arm_features_are_read_from_cpuinfo() -> None:
    assert CpuFeatures.of("Features\t: fp asimd asimddp bf16 i8mm\n", "aarch64") == CpuFeatures(False, True, True, True)
    assert CpuFeatures.of("Features\t: fp asimd\n", "aarch64") == CpuFeatures(False, False, False, False)


@pytest.mark.parametrize(
    ("flags", "precision", "reason"),
    [
        (GRANITE_RAPIDS, "bfloat16", "CPU has AMX"),
        (ZEN_5, "bfloat16", "CPU has AVX512-BF16"),
        (SAPPHIRE_RAPIDS_WITHOUT_AMX, "float32", "CPU has AVX512-BF16 but no AMX, so float32 is faster than bfloat16"),
        (ICE_LAKE, "float32", "CPU has VNNI but no bfloat16 support: ATTENDANT_PRECISION=int8 is faster"),
        (HASWELL, "float32", "CPU has no bfloat16 support (AVX512-BF16 or AMX)"),
    ],
)
def test_auto_follows_the_cpu(flags: str, precision: str, reason: str) -> None:
    choice = select(flags)
    assert (choice.provider, choice.precision, choice.graph) == ("openvino", precision, "fast")
    assert (choice.streams, choice.threads_per_stream) == (2, 1)
    assert choice.reason.startswith(reason)


def test_onnxruntime_is_selected_when_openvino_is_missing_or_disabled() -> None:
    for choice in (select(ZEN_5, facts={"openvino": False}), select(ZEN_5, provider="cpu")):
        assert (choice.provider, choice.precision, choice.streams) == ("cpu", "float32", 2)
        assert choice.reason == "openvino is not in use, so bfloat16 is not available"


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_threads_have_one_stream_each(threads: int) -> None:
    choice = select(ZEN_5, threads=threads)
    assert (choice.streams, choice.threads_per_stream) == (threads, 1)


def test_options_override_the_defaults() -> None:
    choice = select(GRANITE_RAPIDS, precision="float32", threads=4, max_batch_tokens=64)
    assert (choice.precision, choice.max_batch_tokens, choice.reason) == ("float32", 64, "ATTENDANT_PRECISION=float32")


def test_int8_requires_explicit_precision() -> None:
    graphs = (*FAST, "int8")
    assert select(ICE_LAKE, graphs).precision == "float32"
    choice = select(ICE_LAKE, graphs, precision="int8")
    assert (choice.provider, choice.precision, choice.graph) == ("openvino", "int8", "int8")


GPU = {"cuda_build": True, "gpus": 1}


def test_auto_selects_cuda_only_with_gpu_graph_and_package() -> None:
    graphs = (*FAST, "cuda")
    gpu = Gpu(0, 7)
    choice = select(ZEN_5, graphs, GPU, max_batch_tokens=2048, gpu=gpu)
    assert choice == BackendChoice("cuda", "float16", "cuda", 1, 1, 2048, "CUDA GPU found", gpu)
    assert select(ZEN_5, FAST, GPU).reason == "CPU has AVX512-BF16; GPU unused: the artifact has no cuda graph"
    assert "cuda graph unused: onnxruntime-gpu is not installed" in select(HASWELL, graphs).reason
    assert select(ZEN_5, graphs, GPU, precision="float32").provider == "openvino"
    assert select(ZEN_5, graphs, GPU, provider="cpu").provider == "cpu"


@pytest.mark.parametrize(
    ("options", "flags", "graphs", "facts", "message"),
    [
        ({"precision": "bfloat16"}, ICE_LAKE, FAST, {}, 'PRECISION: "bfloat16" requires a CPU with AVX512-BF16 or AMX'),
        ({"precision": "bfloat16"}, ZEN_5, FAST, {"openvino": False}, '"bfloat16" requires provider "openvino"'),
        ({"precision": "bfloat16", "provider": "cpu"}, ZEN_5, FAST, {}, '"bfloat16" requires provider "openvino"'),
        ({"precision": "int8"}, ICE_LAKE, FAST, {}, 'the artifact has no "int8" graph'),
        ({"precision": "int8"}, HASWELL, (*FAST, "int8"), {}, '"int8" requires a CPU with VNNI'),
        ({"precision": "int8"}, ICE_LAKE, (*FAST, "int8"), {"openvino": False}, '"int8" requires provider "openvino"'),
        ({"precision": "int8", "provider": "cpu"}, ICE_LAKE, (*FAST, "int8"), {}, '"int8" requires provider'),
        ({"provider": "openvino"}, ZEN_5, FAST, {"openvino": False}, 'PROVIDER: "openvino" is not installed'),
        ({"precision": "float16"}, ZEN_5, FAST, {}, 'PRECISION: "float16" requires a CUDA GPU: onnxruntime-gpu'),
        ({"precision": "float16", "provider": "cpu"}, ZEN_5, FAST, {}, '"float16" is not supported by provider "cpu"'),
        ({"provider": "cuda"}, ZEN_5, (*FAST, "cuda"), {}, 'PROVIDER: "cuda" is not available: onnxruntime-gpu'),
        ({"provider": "cuda"}, ZEN_5, FAST, GPU, 'PROVIDER: "cuda" is not available: the artifact has no "cuda" graph'),
        ({"provider": "cuda", "gpu": Gpu(2)}, ZEN_5, (*FAST, "cuda"), GPU, "GPU_DEVICE is 2, but the driver reports 1"),
        (
            {"provider": "cuda", "precision": "float32"},
            ZEN_5,
            FAST,
            GPU,
            '"float32" is not supported by provider "cuda"',
        ),
        ({"provider": "cuda"}, ZEN_5, (PADDED,), GPU, 'PROVIDER: "cuda" is not available for a model imported from'),
        ({"provider": "openvino"}, ZEN_5, (PADDED,), {}, 'PROVIDER: "openvino" is not available for a model imported'),
        ({"precision": "bfloat16"}, ZEN_5, (PADDED,), {}, 'PRECISION: "bfloat16" is not available for a model import'),
    ],
)
def test_unavailable_options_are_rejected_by_name(
    options: dict[str, Any], flags: str, graphs: tuple[str, ...], facts: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match="ATTENDANT_") as caught:
        select(flags, graphs, facts, **options)
    assert message in str(caught.value)


def test_imported_graph_runs_in_onnxruntime() -> None:
    choice = select(ZEN_5, (PADDED,), GPU)
    assert (choice.provider, choice.precision, choice.graph, choice.streams) == ("cpu", "float32", PADDED, 2)


@pytest.mark.parametrize("precision", ["auto", "float16"])
def test_imported_graph_runs_in_its_own_precision(precision: Any) -> None:
    facts = machine(ZEN_5)
    choice = select_backend(BackendOptions(precision=precision), {PADDED: "float16"}, facts)
    assert (choice.provider, choice.precision, choice.graph) == ("cpu", "float16", PADDED)


def test_explain_lane_uses_half_of_the_threads() -> None:
    assert explain_choice("explain", 8).threads_per_stream == 4
    assert explain_choice("explain", 1).threads_per_stream == 1
    assert explain_choice("explain", 8).precision == "float32"


def test_choice_matches_the_features_of_this_machine() -> None:
    choice, detected = (
        select_backend(BackendOptions(), dict.fromkeys(FAST, "float32"), Machine.detect()),
        Machine.detect(),
    )
    assert detected.cpus >= 1
    assert choice.provider == ("openvino" if detected.openvino else "cpu")
    assert choice.precision == ("bfloat16" if detected.openvino and detected.cpu.fast_bfloat16 else "float32")
