"""A server process: settings -> engine -> servers. Start, serve, drain and stop, in that order.

The process is the whole server, or one of several workers whose supervisor owns the listening sockets.
"""

import asyncio
import contextlib
import functools
import json
import logging
import os
import signal
import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

from model.artifact.console import EX_CONFIG, EX_OK, EX_SOFTWARE
from model.artifact.files import ArtifactError
from service import __version__, read_revision
from service.auth import ADMIN_OPTION, Access, ApiKeys
from service.callers import ANONYMOUS_NAME
from service.config import ConfigError, Settings
from service.engine.model_loader import LoadedModel
from service.engine.repository import ModelRepository, ModelsChange, ModelsState
from service.errors import ServiceError
from service.exporter import stop_exporters
from service.file_watch import FileWatch
from service.lifecycle import Lifecycle
from service.logs import count_dropped_lines
from service.metrics import NO_MODEL, Metrics
from service.models_file import ModelEntry
from service.process import background_task, exit_after, relaxed_gc, release_memory, run_in_thread, start_task
from service.request_log import RequestLog
from service.shared_values import Cell
from service.sockets import bind, bind_error, format_address, raise_open_file_limit, warn_of_open_files
from service.tls import Tls, TlsFiles
from service.tracing import start_tracing

if TYPE_CHECKING:
    from attendant_client.types import ModelInfo

    from service.rest.server import Server
    from service.rpc.server import RpcServer
    from service.worker_link import Message, WorkerLink

LOOP_LAG_PERIOD_S = 0.25
OPEN_FILES_PERIOD_S = 30.0
MAX_WATCH_STEP_S = 1.0
"""Maximum run time that one period adds to a batch, in seconds. A longer pause means that the process was suspended or
starved.
"""
CONNECTION_GRACE_S = 2.0
"""Seconds reserved at the end of the drain.

During this time, responses finish, and idle connections and incomplete requests are closed.
"""
HEALTHY_RATIO = 0.9
"""Fraction of the drain delay during which gRPC health is still SERVING. Keep the maximum connection age shorter."""

log = logging.getLogger("attendant")


def example_request(info: "ModelInfo") -> tuple[str, dict[str, Any]]:
    """Return the path and body of an example request that suits the model."""
    if info.token_labels:
        return "/v1/token-classify", {"inputs": "Ada Lovelace lived in London."}
    if info.labels and "rerank" not in info.operations:
        return "/v1/classify", {"inputs": "The delivery was late again."}
    if info.labels:
        return "/v1/rerank", {"query": "open a bank account", "documents": ["The river bank.", "Opening an account."]}
    return "/v1/encode", {"inputs": "money bank grows"}


class App:
    """One server process. `run` returns the exit status."""

    def __init__(self, settings: Settings, link: "WorkerLink | None" = None) -> None:
        """`link`: the connection to this worker's supervisor; None for a single-process server."""
        # `_created` series are a third of all series, and Prometheus does not use them.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._settings = settings
        self._link = link
        self._slot = None if link is None else link.slot
        self._ports = settings.rest_port, settings.grpc_port, settings.admin_port
        self._access = Access(
            ApiKeys.load(settings.api_keys_file), ApiKeys.load(settings.admin_keys_file, ADMIN_OPTION)
        )
        self._tracing = start_tracing()
        self._stop = asyncio.Event()
        self._watches: list[FileWatch[Any]] = []
        self._tasks = contextlib.ExitStack()  # that end with the server
        self.metrics = Metrics(CollectorRegistry())
        count_dropped_lines(self.metrics.dropped_log_lines.inc)
        if link is None:  # the supervisor exports process metrics
            for collector in (ProcessCollector, PlatformCollector, GCCollector):
                collector(registry=self.metrics.registry)
        else:
            self.metrics.totals = link.totals
        self.metrics.build_info.labels(__version__, read_revision()).set(1)
        self._lifecycle = Lifecycle(self.metrics)
        # Files may have changed since the other workers loaded what they serve.
        served = None if link is None else link.start.models
        self._repository = ModelRepository(settings, self.metrics, None if served is None else ModelsState(**served))
        if link is not None:
            self._repository.coordinate = lambda change: link.request_change(asdict(change))
        files = TlsFiles.of(settings)
        self._tls = None if files is None else Tls(files, self.metrics, settings.worker_connections)

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT."""
        self._install_signal_handlers()
        settings, link = self._settings, self._link
        raise_open_file_limit(settings)
        rest_socket = admin_socket = None
        if link is None:
            rest_socket = bind(settings.host, settings.rest_port, "REST")
            admin_socket = bind(settings.admin_host, settings.admin_port, "admin")
            if settings.grpc_port:
                bind(settings.host, settings.grpc_port, "gRPC").close()  # gRPC's error messages span several lines
        with (
            background_task(self._monitor_event_loop()),
            self._tasks,
            relaxed_gc(),
        ):
            loading = run_in_thread(self._repository.load_all)
            self._rest, self._admin, self._rpc = self._make_servers()
            self._watches = self._watch_files()
            for watch in self._watches:
                self._tasks.enter_context(background_task(watch.run()))
            await self._admin.start(admin_socket)
            await self._rest.start(rest_socket, settings.rest_port)
            # The kernel also passes gRPC connections to a worker that is loading, so while others serve, it comes last.
            others_serve = link is not None and link.start.models is not None and bool(link.start.models["served"])
            grpc_port = settings.grpc_port if others_serve else await self._start_rpc()
            if link is not None:
                self._tasks.enter_context(background_task(self._share_quotas(link)))
                link.attach(self._rest.adopt, self._admin.adopt, self._on_message)
            rest_port, admin_port = (
                port if bound is None else bound.getsockname()[1]
                for bound, port in ((rest_socket, settings.rest_port), (admin_socket, settings.admin_port))
            )
            self._ports = rest_port, grpc_port, admin_port
            status = await self._finish_loading(loading)
            del loading  # drop the reference to the first models, which may be replaced
            models = asdict(self._repository.models_state)
            if status == EX_OK and link is not None:
                try:
                    link.check_size(models)
                except ConfigError as error:
                    log.error("%s", error)
                    status = EX_CONFIG
            if status == EX_OK and not self._stop.is_set():
                if others_serve:
                    await self._start_rpc()
                self._forget_removed()
                await self._rpc.set_serving(link is None or not link.start.is_measured)
                if link is None:
                    self._watch_models()
                    self._announce()
                else:
                    link.tell("ready", models=models, **self._measure_models())
                await self._stop.wait()
            await self._drain()
            await asyncio.to_thread(stop_exporters)
        return status

    async def _start_rpc(self) -> int:
        """Open the gRPC port and return it. Raises `ConfigError` if it cannot be bound."""
        from service.rpc.server import make_server_credentials

        settings = self._settings
        credentials = None if self._tls is None else make_server_credentials(self._tls)
        try:
            return await self._rpc.start(format_address(settings.host, settings.grpc_port), credentials)
        except OSError as error:
            raise bind_error("gRPC", settings.host, settings.grpc_port, error) from None

    def _forget_removed(self) -> None:
        """Remove metrics of models and callers that were removed while this worker did not run."""
        if self._slot is not None:
            self._slot.forget("model", {NO_MODEL, *(engine.name for engine in self._lifecycle.models)})
            if self._access.keys is not None:
                self._slot.forget("caller", {ANONYMOUS_NAME, *self._access.keys.callers})

    def _watch_models(self) -> None:
        """Apply changes of the models file from now on. The supervisor selects one worker, which does it for all."""
        watch = self._repository.watch()
        if watch is not None:
            self._watches.append(watch)
            self._tasks.enter_context(background_task(watch.run()))

    def _make_servers(self) -> "tuple[Server, Server, RpcServer]":
        """Return the servers of REST, admin and gRPC.

        The imports take 0.3 s, so they run while a thread loads the model.
        """
        from service.connections import parse_networks
        from service.memory import MemoryBudget
        from service.rest.app import make_admin_app, make_app
        from service.rest.cors import Cors
        from service.rest.middleware import LoadShedder
        from service.rest.protocol import ConnectionLimits
        from service.rest.server import Server
        from service.rpc.server import RpcServer

        settings, lifecycle, metrics, access = self._settings, self._lifecycle, self.metrics, self._access
        budget = MemoryBudget(settings.worker_request_bytes, "request bodies")
        header_timeout_s = settings.header_timeout_ms / 1000
        requests = RequestLog.of(settings, metrics, self._tracing)
        limits = ConnectionLimits(
            header_timeout_s,
            settings.worker_connections,
            settings.connections_per_address,
            parse_networks(settings.trusted_proxies),
            settings.response_stall_timeout_ms / 1000,
        )
        rest = Server(
            make_app(lifecycle, settings, metrics, access, budget, requests),
            replace(
                limits,
                on_rejected=requests.reject_connection,
                on_closed=functools.partial(requests.close_connection, "rest"),
                root_path=settings.root_path,
            ),
            LoadShedder(lifecycle, requests, access.keys, Cors(settings.cors_origins), settings.root_path),
            self._tls.context if self._tls else None,
        )
        if self._slot is not None:
            slot = self._slot
            rest.on_lost = lambda: slot.add(Cell.CLOSED)
        metrics.connections.set_function(lambda: rest.connections)
        for api in ("rest", "grpc"):
            metrics.connection_limit.labels(api).set(settings.worker_connections)
        if requests.responses is not None:
            responses = requests.responses
            metrics.pending_response_bytes.set_function(lambda: responses.used)
        admin = Server(
            make_admin_app(lifecycle, settings, metrics, access),
            limits,
            tls=self._tls.admin_context if self._tls and self._link is None else None,
        )
        rpc = RpcServer(lifecycle, settings, metrics, access, budget, requests, shares_port=self._link is not None)
        return rest, admin, rpc

    def _watch_files(self) -> "list[FileWatch[Any]]":
        """Return the watches of the key files and TLS files."""
        watches: list[FileWatch[Any]] = [
            keys.watch(self.metrics) for keys in (self._access.keys, self._access.admin_keys) if keys is not None
        ]
        return watches if self._tls is None else [*watches, self._tls.watch(self._rest.renew_connections)]

    async def _finish_loading(self, loading: "asyncio.Future[list[tuple[ModelEntry, LoadedModel]]]") -> int:
        """Start the engines once the models are loaded. Returns immediately if a signal arrives."""
        stop = asyncio.create_task(self._stop.wait())
        either: set[asyncio.Future[Any]] = {loading, stop}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not loading.done():
            return EX_OK
        try:
            loaded = loading.result()
        except (ArtifactError, ConfigError) as error:
            self._lifecycle.fail()
            log.error("%s", error)
            return EX_CONFIG
        except Exception:
            self._lifecycle.fail()
            log.exception("model load failed")
            return EX_SOFTWARE
        models = self._repository.start(loaded)
        release_memory()
        self._lifecycle.become_ready(models, self._repository)
        return EX_OK

    async def _drain(self) -> None:
        """Report not ready, serve for `drain_delay_ms`, reject new requests, finish accepted ones, then close.

        Takes at most `drain_timeout_ms` in total.
        """
        timeout_s = self._settings.drain_timeout_ms / 1000
        deadline = time.monotonic() + timeout_s
        exit_after(timeout_s)
        grace_s = min(CONNECTION_GRACE_S, timeout_s / 4)
        self._lifecycle.start_draining()
        was_serving = self._lifecycle.loaded is not None
        if was_serving:
            log.info("drain started timeout_ms=%d", self._settings.drain_timeout_ms)
            # A client that checks health through a TCP proxy has only this connection, and would fail all calls until
            # the connection reaches its maximum age. So change the health status only after that age.
            await asyncio.sleep(HEALTHY_RATIO * self._settings.drain_delay_ms / 1000)
        await self._rpc.set_not_serving()
        if was_serving:
            await asyncio.sleep((1 - HEALTHY_RATIO) * self._settings.drain_delay_ms / 1000)
        self._lifecycle.reject_new()
        try:
            async with asyncio.timeout(deadline - time.monotonic() - 2 * grace_s):
                await self._lifecycle.drain()
        except TimeoutError:
            log.warning("drain timed out, rejecting unfinished requests timeout_ms=%d", self._settings.drain_timeout_ms)
        self._tell_supervisor("closing")
        await asyncio.gather(self._rpc.stop(grace_s), self._rest.stop(grace_s), self._admin.stop(grace_s))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, deadline - time.monotonic() - grace_s / 4)):
                await self._lifecycle.close()
                if self._tracing is not None:
                    await asyncio.to_thread(self._tracing.close)
        if was_serving:
            log.info("drain finished")

    def _announce(self) -> None:
        """Print the addresses of the server."""
        from service.rest.hosts import is_loopback

        rest_port, grpc_port, admin_port = self._ports
        host, admin_host = self._settings.host, self._settings.admin_host
        tls = self._tls
        if self._access.keys is None and not (tls and tls.requires_client_certificates) and not is_loopback(host):
            log.warning("API keys disabled on a non-loopback address host=%s option=ATTENDANT_API_KEYS_FILE", host)
        scheme = "http" if tls is None else "https"
        rest = f"{scheme}://{format_address(host, rest_port)}"
        log.info("ready rest_port=%d grpc_port=%d admin_port=%d", rest_port, grpc_port, admin_port)
        key = "" if self._access.keys is None else " -H 'authorization: Bearer KEY'"
        if tls is not None:
            key += " --cacert CA.pem"
            key += " --cert CLIENT.pem --key CLIENT.key" if tls.requires_client_certificates else ""
        path, body = example_request(self._lifecycle.models.find(None).info)
        sys.stdout.write(  # written in one call, so that no log line splits the text
            f"ready: REST {rest}, gRPC {format_address(host, grpc_port)}, "
            f"admin {scheme}://{format_address(admin_host, admin_port)}, page {rest}/. Try: "
            f"curl -s {rest}{path} -H 'content-type: application/json'{key} -d '{json.dumps(body)}'\n"
        )
        sys.stdout.flush()

    def _install_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()

        def on_signal(number: signal.Signals) -> None:
            if self._stop.is_set():
                log.warning("second signal received, exiting signal=%s", number.name)
                logging.shutdown()
                os._exit(EX_SOFTWARE)
            self._stop.set()

        def on_hangup() -> None:
            log.info("reload requested signal=SIGHUP")
            for watch in self._watches:
                watch.request()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal, number)
        loop.add_signal_handler(signal.SIGHUP, on_hangup)

    async def _monitor_event_loop(self) -> None:
        check_files_at = 0.0
        while True:
            if time.monotonic() >= check_files_at:
                check_files_at = time.monotonic() + OPEN_FILES_PERIOD_S
                warn_of_open_files()
            expected = time.perf_counter() + LOOP_LAG_PERIOD_S
            await asyncio.sleep(LOOP_LAG_PERIOD_S)
            lag = max(0.0, time.perf_counter() - expected)
            self.metrics.loop_lag_seconds.observe(lag)
            self._lifecycle.watch(min(MAX_WATCH_STEP_S, LOOP_LAG_PERIOD_S + lag))
            if self._slot is not None:
                self.metrics.read_functions()
                self._slot.add(Cell.BEATS)
            if self._lifecycle.alive and not self._lifecycle.healthy:
                log.critical("engine failed")
                self._lifecycle.fail()
                await self._rpc.set_serving(False)
                self._tell_supervisor("failed")

    async def _share_quotas(self, link: "WorkerLink") -> None:
        """Exchange the quota usage of callers with the other workers."""
        from service.quota_board import PERIOD_S, QuotaBoard

        board = QuotaBoard(link.quotas, link.start.number, link.start.workers)
        while True:
            if self._access.keys is not None:
                board.sample(self._access.keys.callers.values())
            await asyncio.sleep(PERIOD_S)

    def _on_message(self, message: "Message") -> None:
        """Handle a message from the supervisor."""
        match message["event"]:
            case "announce":
                self._announce()
            case "serve":
                start_task(self._rpc.set_serving(True))
            case "watch":
                self._watch_models()
            case "prepare":
                start_task(self._prepare_models(ModelsChange(**message["change"])))
            case "commit":
                try:
                    self._repository.commit()
                except Exception:  # this worker no longer serves the same models as the others
                    log.exception("prepared models cannot be served")
                    self._tell_supervisor("failed")
                    return
                self._tell_supervisor("committed", error="", models=asdict(self._repository.models_state))
            case "abort":
                self._repository.abort()
                self._tell_supervisor("aborted", error="")

    async def _prepare_models(self, change: ModelsChange) -> None:
        """Prepare a change of the models, which the supervisor then commits or aborts in every worker."""
        error = ""
        try:
            await self._repository.prepare(change)
        except (ConfigError, ServiceError) as problem:
            error = str(problem)
        except Exception as problem:  # the supervisor waits for a reply
            log.exception("models cannot be prepared")
            error = f"Unexpected {type(problem).__name__}. See the log."
        self._tell_supervisor("prepared", error=error)

    def _measure_models(self) -> "Message":
        """Return the measurements that the supervisor uses to choose the number of workers."""
        models, copies = self._lifecycle.models, None
        if any(info.gpu_memory_bytes for info in models.infos):
            from service.engine.backends.cuda_memory import count_copies

            copies = count_copies()
        return {"texts_per_second": models.texts_per_second, "gpu_copies": copies}

    def _tell_supervisor(self, event: str, **values: Any) -> None:
        if self._link is not None:
            self._link.tell(event, **values)
