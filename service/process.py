"""Process-level helpers: background tasks, the loading thread, memory and exit."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator
from typing import TypeVar

from model.artifact.console import EX_SOFTWARE

COLLECTION_THRESHOLDS = (5_000, 200, 20)
LOADING_THREAD = "attendant-load"
INFERENCE_NICE = 10

T = TypeVar("T")

log = logging.getLogger("attendant")


def exit_after(seconds: float) -> None:
    """Exit the process after this time, even if the event loop or a thread hangs."""

    def force_exit() -> None:
        log.error("drain timeout exceeded, exiting")
        logging.shutdown()
        os._exit(EX_SOFTWARE)

    timer = threading.Timer(seconds, force_exit)
    timer.daemon = True
    timer.start()


def start_task(work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
    """Start a task that nothing awaits. If it fails, the exception is logged."""

    def report(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("background task failed", exc_info=error)

    task = asyncio.create_task(work)
    task.add_done_callback(report)
    return task


@contextlib.contextmanager
def background_task(work: Coroutine[None, None, None]) -> Iterator[None]:
    """Run a task until the block exits."""
    task = start_task(work)
    try:
        yield
    finally:
        task.cancel()


@contextlib.contextmanager
def relaxed_gc() -> Iterator[None]:
    """Collect garbage cycles less often until the block exits.

    Thousands of queued requests create many objects but no garbage. With the default thresholds, collections took more
    than half of the event loop's time under overload. A collection of the youngest generation takes a few milliseconds.
    Older generations take 0.2 s under overload, but must be collected: grpc leaves behind five small objects per RPC,
    and some survive the first collection.
    """
    usual = gc.get_threshold()
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


def release_memory() -> None:
    """Free memory after a model was loaded or removed, and exclude all current objects from later collections."""
    gc.unfreeze()
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # glibc only: return the memory of temporary weight copies to the OS
    gc.freeze()


def lower_thread_priority() -> None:
    """Lower the priority of the calling thread and of threads it creates later, so that the event loop preempts them.

    Under overload, inference threads at equal priority starve the event loop: requests wait for seconds before they are
    read.
    """
    with contextlib.suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), INFERENCE_NICE)


def clear_frames(error: BaseException | None) -> None:
    """Clear the local variables in the traceback of an error and of its context.

    A reference to the error would keep these objects alive, such as the session of a rejected model.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def run_in_thread(work: Callable[[], T]) -> "asyncio.Future[T]":
    """Run `work` in a daemon thread, so that a signal during loading can stop the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as raised:  # noqa: BLE001  # the future raises it
            error = raised
        except BaseException as raised:  # noqa: BLE001  # such as a tokenizer panic, which would go unnoticed
            error = RuntimeError(f"{type(raised).__name__}: {raised}")
            error.__cause__ = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing awaits the future
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=LOADING_THREAD, daemon=True).start()
    return future
