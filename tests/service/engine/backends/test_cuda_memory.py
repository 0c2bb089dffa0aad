"""The memory of a GPU, with a driver that reports what a test says."""

import ctypes
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.config import ConfigError
from service.engine.backends import cuda_memory
from service.engine.backends.base import Gpu
from service.engine.backends.cuda_memory import DeviceMemory, GpuMemory


class Driver:
    """The functions of libcuda that are used, of a GPU with 1,000 bytes."""

    def __init__(self) -> None:
        self.free = 1000
        self.failing = ""

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == "cuMemGetInfo_v2":
                arguments[0]._obj.value, arguments[1]._obj.value = self.free, 1000
            return int(name == self.failing)

        return call


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    cuda_memory.models.clear()  # of other tests
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    return driver


def test_without_a_driver_the_memory_is_unknown() -> None:
    if cuda_memory.DeviceMemory.read(0) is not None:
        pytest.skip("this machine has a GPU")
    assert GpuMemory(Gpu(), 10**15).bytes == 10**15


@pytest.mark.parametrize(
    "function", ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuMemGetInfo_v2"]
)
def test_a_failing_driver_is_no_error(driver: Driver, function: str) -> None:
    driver.failing = function
    assert DeviceMemory.read(0) is None
    assert GpuMemory(Gpu(), 10**15).bytes == 10**15


def test_a_model_takes_what_is_no_longer_free(driver: Driver) -> None:
    memory = GpuMemory(Gpu(), 300)
    driver.free = 400
    memory.measure()
    assert memory.bytes == 600


def test_the_error_names_all_figures_and_what_helps(driver: Driver) -> None:
    driver.free = 800
    first = GpuMemory(Gpu(1, 900), 350)
    with pytest.raises(ConfigError) as raised:
        GpuMemory(Gpu(1, 900), 600)
    assert str(raised.value) == (
        "not enough GPU memory (weights and buffers take 600 bytes; other models 350; "
        "ATTENDANT_GPU_MEMORY_LIMIT_BYTES allows this process 900; 800 of 1,000 were free on GPU 1). "
        "Unload another model or set a larger ATTENDANT_GPU_MEMORY_LIMIT_BYTES."
    )
    assert first.gpu.memory_limit_bytes == 900
    first.release()
    with pytest.raises(ConfigError) as raised:
        GpuMemory(Gpu(), 801)
    assert str(raised.value) == (
        "not enough GPU memory (weights and buffers take 801 bytes; 800 of 1,000 were free on GPU 0). "
        "End other processes that use the GPU."
    )
    assert str(GpuMemory(Gpu(), 100).exceeded(by_batches=True)) == (
        "not enough GPU memory (weights and buffers take 100 bytes, and batches do not fit; "
        "800 of 1,000 were free on GPU 0). Set a smaller ATTENDANT_MAX_BATCH_TOKENS."
    )


@given(
    limit=st.integers(1, 1000),
    steps=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400), st.booleans()), max_size=12),
)
def test_models_never_take_more_than_the_limit(limit: int, steps: list[tuple[int, int, bool]]) -> None:
    """Each session may use what its limit allows. Unloaded models no longer count, and rejected ones never did."""
    driver = Driver()
    cuda_memory.models.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctypes, "CDLL", lambda name: driver)
        models: list[GpuMemory] = []
        for least, more, unload in steps:
            if unload and models:
                driver.free += models.pop(0).bytes
            used = sum(model.bytes for model in models)
            try:
                model = GpuMemory(Gpu(0, limit), least)
            except ConfigError:
                assert least > limit - used or least > driver.free
                continue
            assert model.gpu.memory_limit_bytes == max(1, limit - used)
            driver.free -= min(least + more, limit - used)
            model.measure()
            models.append(model)
            del model  # so that only the list holds it
            assert sum(model.bytes for model in models) <= limit
            assert driver.free == 1000 - sum(model.bytes for model in models)
