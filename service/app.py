"""The one place that builds: settings -> engine -> doors. Start, serve, drain, stop, in the order they happen."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from model.artifact import ArtifactError
from service import __version__
from service.auth import ApiKeys
from service.config import ConfigError, Settings
from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.rest.edge import make_admin_app, make_app
from service.rest.server import Server
from service.rpc.server import RpcServer

EX_OK, EX_SOFTWARE, EX_CONFIG = 0, 70, 78
LOOP_LAG_PERIOD_S = 0.25
LAST_WORDS_S = 2
COLLECTION_THRESHOLDS = (5_000, 200, 20)
LOADING_THREAD = "attendant-load"

Made = TypeVar("Made")

log = logging.getLogger("attendant")


class App:
    """One server process. `run` returns the exit status."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._keys = ApiKeys.load(settings.api_keys_file)
        self._stop = asyncio.Event()
        self.metrics = Metrics(CollectorRegistry())
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.metrics.registry)
        self.metrics.build_info.labels(__version__).set(1)
        self._host = Lifecycle(self.metrics)
        header_s = settings.header_timeout_ms / 1000
        edge = make_app(self._host, settings, self.metrics, self._keys)
        self._rest = Server(edge, header_s, LAST_WORDS_S, gate=edge)
        self._admin = Server(make_admin_app(self._host, self.metrics), header_s, LAST_WORDS_S)
        self._rpc = RpcServer(self._host, settings, self.metrics, self._keys)

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT."""
        self._listen_to_signals()
        settings = self._settings
        rest_socket = bind(settings.host, settings.rest_port, "REST")
        admin_socket = bind(settings.admin_host, settings.admin_port, "admin")
        if settings.grpc_port:
            # gRPC says it too, in its own words and on several lines; so ask first.
            bind(settings.host, settings.grpc_port, "gRPC").close()
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(running(self._watch_loop()))
            stack.enter_context(rare_collections())
            stack.push_async_callback(stop_server, self._admin, asyncio.create_task(self._admin.serve([admin_socket])))
            rest = asyncio.create_task(self._rest.serve([rest_socket]))
            try:
                grpc_port = await self._rpc.start(f"{settings.host}:{settings.grpc_port}")
            except OSError:
                raise port_error("gRPC", settings.host, settings.grpc_port) from None
            await self._rest.started_event.wait()
            await self._admin.started_event.wait()
            status = await self._load()
            if status == EX_OK and not self._stop.is_set():
                await self._rpc.say_serving(True)
                self._announce(rest_socket.getsockname()[1], grpc_port, admin_socket.getsockname()[1])
                await self._stop.wait()
            await self._drain(rest)
        return status

    async def _load(self) -> int:
        """Load the model while the probes already answer; give up at once when told to stop."""
        loading = in_thread(lambda: LoadedModel.load(self._settings))
        stop = asyncio.create_task(self._stop.wait())
        either: set[asyncio.Future[Any]] = {loading, stop}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not loading.done():
            return EX_OK
        try:
            model = loading.result()
        except (ArtifactError, ConfigError) as error:
            self._host.fail()
            log.error("%s", error)
            return EX_CONFIG
        except Exception:
            self._host.fail()
            log.exception("the model could not be opened")
            return EX_SOFTWARE
        engine = Engine(model, self._settings, self.metrics)
        facts = engine.info
        self.metrics.model_info.labels(facts.name, facts.digest, facts.provider, facts.precision).set(1)
        gc.collect()
        gc.freeze()  # what has been made by now stays as long as the process
        self._host.become_ready(engine)
        return EX_OK

    async def _drain(self, rest: "asyncio.Task[None]") -> None:
        """Not ready, wait, refuse new, drain, close; the timeout is for the first four together."""
        deadline = time.monotonic() + self._settings.drain_timeout_ms / 1000
        self._host.start_draining()
        await self._rpc.say_stopping()
        if self._host.loaded:
            log.info("stopping: answering what was taken")
            await asyncio.sleep(self._settings.drain_delay_ms / 1000)
        self._host.refuse()
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await self._host.drain()
        except TimeoutError:
            log.warning("stopping with work unfinished after %d ms", self._settings.drain_timeout_ms)
        # What is left are answers on their way, idle connections, and bodies that never came.
        await asyncio.gather(self._rpc.stop(LAST_WORDS_S), stop_server(self._rest, rest))
        await self._host.close()

    def _announce(self, rest_port: int, grpc_port: int, admin_port: int) -> None:
        host, admin_host = self._settings.host, self._settings.admin_host
        rest = f"http://{host}:{rest_port}"
        print(
            f"ready: REST {rest}, gRPC {host}:{grpc_port}, admin http://{admin_host}:{admin_port}. Try: "
            f"curl -s {rest}/v1/encode -H 'content-type: application/json' "
            """-d '{"inputs": "money bank grows"}'""",
            flush=True,
        )

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            if self._stop.is_set():
                log.warning("told twice: stopping at once")
                os._exit(EX_SOFTWARE)
            self._stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)

    async def _watch_loop(self) -> None:
        while True:
            expected = time.perf_counter() + LOOP_LAG_PERIOD_S
            await asyncio.sleep(LOOP_LAG_PERIOD_S)
            self.metrics.loop_lag_seconds.observe(max(0.0, time.perf_counter() - expected))


def bind(host: str, port: int, what: str) -> socket.socket:
    """A bound socket; raises `ConfigError` with one clear line when the port cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except socket.gaierror:
        bound.close()
        option = "ATTENDANT_ADMIN_HOST" if what == "admin" else "ATTENDANT_HOST"
        raise ConfigError(f"{option}: {host} is not an address of this machine.") from None
    except OSError:
        bound.close()
        raise port_error(what, host, port) from None
    return bound


def port_error(what: str, host: str, port: int) -> ConfigError:
    option = f"ATTENDANT_{what.upper()}_PORT"
    return ConfigError(f"{host}:{port} cannot be had for {what}: in use, or not an address of ours. Set {option}.")


async def stop_server(server: Server, task: "asyncio.Task[None]") -> None:
    server.should_exit = True
    await task


@contextlib.contextmanager
def running(work: Coroutine[None, None, None]) -> Iterator[None]:
    """A task for as long as the block lasts."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Look for garbage cycles far less often for as long as the block lasts.

    Thousands of requests that wait are many objects and no garbage. With Python's own thresholds, looking through
    them again and again took more than half of the event loop's time under overload. What is new is looked through in
    portions that take some milliseconds. Older generations, which take 0.2 s under overload, still get their turn: of
    each RPC the library leaves five small objects, some of which live through the first look.
    """
    usual = gc.get_threshold()
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


def in_thread(make: Callable[[], Made]) -> "asyncio.Future[Made]":
    """Run `make` in a thread that does not keep the process alive when it is told to stop meanwhile."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Made] = loop.create_future()

    def settle(result: Made | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = make()
        except Exception as raised:  # noqa: BLE001  # it is handed to whoever awaits
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=LOADING_THREAD, daemon=True).start()
    return future
