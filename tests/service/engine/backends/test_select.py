"""Where the model runs, on whatever machine the test does: each branch asserts something."""

import importlib.util
import os
from pathlib import Path

import pytest

from model.artifact import Artifact
from service.config import ConfigError
from service.engine.backends import select as providers
from service.engine.backends.cuda_session import CUDA, Gpu
from service.engine.backends.select import CPU, OPENVINO, available_cpus, choose_provider


def openvino_capabilities() -> set[str] | None:
    """What the plugin's CPU device can compute in, found without our code; None where there is none."""
    if importlib.util.find_spec("onnxruntime_ep_openvino") is None:
        return None
    import onnxruntime

    choose_provider("auto", "auto")  # a library can be registered once a process, and this registers it
    for device in onnxruntime.get_ep_devices():
        if device.ep_name == OPENVINO and device.ep_metadata.get("ov_device") == "CPU":
            return set(device.ep_metadata.get("OPTIMIZATION_CAPABILITIES", "").split())
    return None


def test_available_cpus_honours_affinity() -> None:
    """A process tied to one CPU counts one."""
    whole = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(whole)})
        assert available_cpus() == 1
    finally:
        os.sched_setaffinity(0, whole)
    assert 1 <= available_cpus() <= len(whole)


@pytest.mark.parametrize(("quota", "cpus"), [("100000 100000", 1), ("150000 100000", 2), ("10000 100000", 1),
                                             ("6400000 100000", 64), ("max 100000", 64), ("nonsense", 64)])  # fmt: skip
def test_available_cpus_honours_the_cgroups_quota(
    quota: str, cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container of half a CPU on a machine of 64 is no machine of 64."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert available_cpus(tmp_path / "cpu.max") == cpus


def test_the_cpu_provider_is_always_there() -> None:
    """In float32, with as many workers as asked."""
    found = choose_provider("cpu", "auto", threads=3, row_tokens=64)
    assert (found.name, found.precision, found.workers, found.shared_row_tokens) == (CPU, "float32", 3, 64)
    assert choose_provider("cpu", "float32").workers == available_cpus()


def test_bf16_on_the_cpu_provider_is_refused() -> None:
    """By the name of the option."""
    with pytest.raises(ConfigError, match="ATTENDANT_PRECISION: bfloat16"):
        choose_provider("cpu", "bfloat16")


def test_auto_takes_the_best_there_is() -> None:
    """The plugin where it takes this CPU, in bfloat16 where the CPU has the unit; else onnxruntime in float32."""
    capabilities, found = openvino_capabilities(), choose_provider("auto", "auto")
    if capabilities is None:
        assert (found.name, found.precision) == (CPU, "float32")
    else:
        assert (found.name, found.precision) == (OPENVINO, "bfloat16" if "BF16" in capabilities else "float32")


def test_openvino_is_had_or_refused_by_name() -> None:
    """Never replaced in silence."""
    if openvino_capabilities() is None:
        with pytest.raises(ConfigError, match="ATTENDANT_PROVIDER: openvino cannot be had here"):
            choose_provider("openvino", "auto")
    else:
        assert choose_provider("openvino", "float32").precision == "float32"


def test_bf16_is_had_or_refused_by_name() -> None:
    """Never replaced in silence."""
    if "BF16" in (openvino_capabilities() or set()):
        assert choose_provider("auto", "bfloat16").precision == "bfloat16"
    else:
        with pytest.raises(ConfigError, match="ATTENDANT_PRECISION"):
            choose_provider("auto", "bfloat16")


def test_int8_is_had_or_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only when asked for, with a graph, on the provider it was measured on, on a CPU that adds in 32 bits."""
    assert choose_provider("cpu", "auto", graphs=("fast", "int8")).precision == "float32"
    for provider, graphs, reason in (
        ("cpu", ("fast",), "--with int8"),
        ("openvino", ("fast", "int8"), "set ATTENDANT_PROVIDER"),
        ("cuda", ("fast", "int8"), "cannot compute in int8"),
    ):
        with pytest.raises(ConfigError, match=reason):
            choose_provider(provider, "int8", graphs=graphs)  # type: ignore[arg-type]
    monkeypatch.setattr(providers, "_multiplies_int8", lambda: False)
    with pytest.raises(ConfigError, match="VNNI"):
        choose_provider("auto", "int8", graphs=("fast", "int8"))
    monkeypatch.setattr(providers, "_multiplies_int8", lambda: True)
    found = choose_provider("auto", "int8", threads=2, graphs=("fast", "int8"))
    assert (found.name, found.precision, found.graph, found.workers) == (CPU, "int8", "int8", 2)


def test_a_session_opens_from_the_verified_bytes(default_artifact: Path) -> None:
    """With the inputs that rows have."""
    artifact = Artifact.open(default_artifact)
    session = choose_provider("cpu", "float32").open(artifact, artifact.manifest.graphs["fast"])
    assert [entry.name for entry in session.get_inputs()] == ["ids", "positions", "types", "segments"]


def test_cuda_is_refused_by_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package, then the device, then the graph; each with the way out."""
    monkeypatch.setattr(providers, "built_for_cuda", lambda: False)
    with pytest.raises(ConfigError, match=r"ATTENDANT_PROVIDER: cuda cannot .*onnxruntime-gpu.*pip install"):
        choose_provider("cuda", "auto", graphs=("fast", "cuda"))
    monkeypatch.setattr(providers, "built_for_cuda", lambda: True)
    monkeypatch.setattr(providers, "gpu_count", lambda: 2)
    with pytest.raises(ConfigError, match="ATTENDANT_GPU_DEVICE is 2, and the CUDA driver knows 2 devices"):
        choose_provider("cuda", "auto", graphs=("fast", "cuda"), gpu=Gpu(2))
    with pytest.raises(ConfigError, match=r"no graph for it\. .* --with cuda"):
        choose_provider("cuda", "auto")


def test_f16_is_had_with_cuda_or_refused_by_name() -> None:
    """Never replaced in silence."""
    with pytest.raises(ConfigError, match="ATTENDANT_PRECISION: float16 cannot be had here"):
        choose_provider("auto", "float16")
    with pytest.raises(ConfigError, match="ATTENDANT_PRECISION: cpu cannot compute in float16"):
        choose_provider("cpu", "float16")
    with pytest.raises(ConfigError, match="ATTENDANT_PRECISION: cuda cannot compute in float32"):
        choose_provider("cuda", "float32")


def test_auto_takes_the_gpu_where_all_of_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Package, device and graph; with one missing, or another precision asked, the CPU."""
    monkeypatch.setattr(providers, "built_for_cuda", lambda: True)
    monkeypatch.setattr(providers, "gpu_count", lambda: 1)
    both = ("fast", "cuda")
    found = choose_provider("auto", "auto", row_tokens=2048, graphs=both, gpu=Gpu(0, 7))
    assert (found.name, found.precision, found.graph, found.shared_row_tokens) == (CUDA, "float16", "cuda", 2048)
    assert found.gpu == Gpu(0, 7)
    assert choose_provider("auto", "auto", graphs=("fast",)).name != CUDA
    assert choose_provider("auto", "float32", graphs=both).name != CUDA
    assert choose_provider("cpu", "auto", graphs=both).name == CPU
