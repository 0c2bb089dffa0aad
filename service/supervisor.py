"""The supervisor of several workers. It owns the ports, and starts, watches and replaces complete servers.

The supervisor accepts REST connections and passes each to the worker with the fewest, because a shared listening socket
does not balance connections: one worker accepted 64 of 64. gRPC cannot adopt a connection, so the workers share its
port via SO_REUSEPORT. The supervisor loads no runtime, NumPy or FastAPI, and sees no request data.
"""

import asyncio
import json
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, disable_created_metrics

from model.artifact.console import EX_OK, EX_SOFTWARE
from model.artifact.memory import available_memory
from service import __version__, read_revision
from service.admin_port import AdminPort, Processes
from service.config import Settings
from service.engine.backends.cpu import available_cpus
from service.exporter import python_path
from service.lifecycle import Status
from service.logs import count_dropped_lines
from service.metrics import Metrics
from service.process import background_task, start_task
from service.quota_board import create_board
from service.shared_values import Aggregate, Cell, Slot
from service.sockets import Acceptor, bind, raise_open_file_limit, reserve
from service.tls import Tls, TlsFiles
from service.worker_link import ADMIN, PARENT, REST, Channel, Message, Start

PERIOD_S = 0.25
SILENT_S = 2.0
"""A worker gets no new connections if its event loop has made no turn for this long."""
HUNG_S = 30.0
"""A worker is killed if its event loop has made no turn for this long."""
LOADING_HUNG_S = 300.0
"""The same for a worker that loads its models, which may hold the GIL. These times are counted in turns of the
supervisor's loop.
"""
BACKOFF_S = 0.5
MAX_BACKOFF_S = 60.0
STABLE_S = 60.0
"""If a worker has been ready for this long, its next exit counts as a first failure."""
MAX_FAILURES = 5
"""The server stops being live when every worker has exited this many times in a row."""
EXIT_GRACE_S = 1.0
LOOP_TEXTS_PER_S = 12_000
"""Texts per second that one event loop serves in requests of 32 sentences (measured with an H200)."""
LOADING_FACTOR = 2
"""Memory of a worker while loading its models, relative to a ready worker."""
MAX_AUTO_WORKERS = 8
CORES_PER_WORKER = 2
"""Minimum cores per worker with `auto`: one for the event loop, and one for tokenization and inference."""
MPS_PIPES = "/tmp/nvidia-mps"  # noqa: S108  # the default of NVIDIA's service
GPU_DEVICE = Path("/dev/nvidiactl")

log = logging.getLogger("attendant.supervisor")


@dataclass
class Worker:
    """A worker and its current process, if any. The slot survives replacement of the process.

    Attributes:
        passed: the number of REST connections passed to this process.
        failures: how many times in a row it has exited without being ready for `STABLE_S`.
        is_replaced: whether its process was killed in order to restart it with its share of the machine.
    """

    number: int
    slot: Slot
    pid: int = 0
    channel: Channel | None = None
    passed: int = 0
    failures: int = 0
    is_replaced: bool = False
    is_listening: bool = False
    is_ready: bool = False
    was_ready: bool = False
    started_at: float = 0.0
    silent_turns: int = 0
    beats: float = 0.0
    restart: asyncio.TimerHandle | None = field(default=None, repr=False)
    reply: "asyncio.Future[Message] | None" = field(default=None, repr=False)

    @property
    def connections(self) -> int:
        """The number of open REST connections."""
        return self.passed - int(self.slot.cells[Cell.CLOSED])

    @property
    def accepts(self) -> bool:
        """Whether it can accept a connection."""
        is_silent = self.was_ready and self.silent_turns * PERIOD_S >= SILENT_S  # loading a model may hold the GIL
        return self.is_listening and not is_silent

    @property
    def is_live(self) -> bool:
        return self.is_ready or self.failures < MAX_FAILURES

    def pass_connection(self, kind: bytes, connection: socket.socket) -> bool:
        """Pass a connection; return whether that succeeded."""
        if self.channel is None or not self.channel.send_connection(kind, connection):
            return False
        self.passed += kind == REST
        return True

    def kill(self, number: int) -> None:
        """Send a signal to the process, if any. Reaping clears `pid`, so it never refers to another process."""
        if self.pid:
            os.kill(self.pid, number)


class Supervisor:
    """Construct it on the event loop of the main thread: workers are killed when the thread that started them ends.

    With `auto`, the first worker starts with the whole machine and measures the speed of its models. If one event loop
    cannot keep up with the models, this worker restarts with its share of the machine, and the others start.

    Attributes:
        module: The module that workers run.
    """

    module = "service"

    def __init__(self, settings: Settings) -> None:
        """Use `settings.workers` workers; 0 selects at most `most_workers`."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        own = Slot.create()
        own.use()
        self._is_measuring = not settings.workers
        self._settings = settings = settings.model_copy(update={"workers": settings.workers or 1})
        most = most_workers() if self._is_measuring else settings.workers
        self._workers = [Worker(number, Slot.create()) for number in range(most)]
        self._quotas = create_board(settings.workers)
        self.metrics = Metrics(CollectorRegistry())
        self.metrics.build_info.labels(__version__, read_revision()).set(1)
        count_dropped_lines(self.metrics.dropped_log_lines.inc)
        files = TlsFiles.of(settings)
        self._tls = None if files is None else Tls(files, self.metrics, settings.max_connections)
        registry = CollectorRegistry()
        registry.register(Aggregate([own, *(worker.slot for worker in self._workers)]))
        registry.register(Processes(lambda: [worker.pid for worker in self._workers if worker.pid]))
        self._admin = AdminPort(settings, registry, lambda: self.status, self._connect_admin)
        self._models: Message | None = None
        self._watcher: Worker | None = None
        self._reads_file = False
        """Whether the first worker to start reads the models file, although others have served different contents."""
        self._changing = asyncio.Lock()
        self._ended = asyncio.Event()
        self._exit_status = EX_OK
        self._has_been_ready = False
        self._deadline = math.inf

    @classmethod
    async def serve(cls, settings: Settings) -> int:
        """Run until SIGTERM or SIGINT; return the exit status."""
        return await cls(settings)._run()

    @property
    def status(self) -> Status:
        """Ready once all workers have been ready, and then while at least one is. Failed when all keep exiting."""
        if self._deadline < math.inf:
            return Status.DRAINING
        started = [worker for worker in self._workers if worker.started_at]
        if started and not any(worker.is_live for worker in started):
            return Status.FAILED
        is_ready = self._has_been_ready and any(worker.is_ready and worker.accepts for worker in self._workers)
        return Status.READY if is_ready else Status.STARTING

    async def _run(self) -> int:
        settings = self._settings
        raise_open_file_limit(settings)
        rest = bind(settings.host, settings.rest_port, "REST")
        grpc = reserve(settings.host, settings.grpc_port, "gRPC")
        admin = bind(settings.admin_host, settings.admin_port, "admin")
        self._acceptor = Acceptor(rest, self._serve)
        self._ports = {
            name: bound.getsockname()[1]
            for name, bound in (("rest_port", rest), ("grpc_port", grpc), ("admin_port", admin))
        }
        self._install_signal_handlers()
        await self._admin.start(admin, None if self._tls is None else self._tls.admin_context)
        watch = None if self._tls is None else self._tls.watch(lambda: None)
        with background_task(self._watch_workers()):
            self._start(self._workers[0])  # the others follow when it is ready, to report loading errors once
            if watch is None:
                await self._ended.wait()
            else:
                with background_task(watch.run()):
                    await self._ended.wait()
        grpc.close()
        self._acceptor.close()
        await self._admin.stop()
        return self._exit_status

    # Processes.

    def _start(self, worker: Worker) -> None:
        """Start the process of a worker."""
        worker.restart = None
        if self._deadline < math.inf:
            return
        others = [other for other in self._workers if other is not worker]
        serves = any(other.is_ready for other in others)
        # A new process must receive every change and load what the others serve. If no worker serves yet, the first one
        # decides.
        if self._changing.locked() or (not serves and any(other.pid for other in others)):
            worker.restart = asyncio.get_running_loop().call_later(PERIOD_S, self._start, worker)
            return
        if self._models is not None and not serves:
            self._models["served"] = {}
        worker.slot.reset()
        worker.passed = worker.silent_turns = 0
        worker.is_listening = worker.is_ready = worker.was_ready = False
        worker.started_at = time.monotonic()
        worker.channel, end = Channel.pair()
        with end:
            end.set_inheritable(True)
            command = [sys.executable, "-P", "-m", self.module, "worker", str(end.fileno())]
            environment = os.environ | {"PYTHONPATH": python_path(), PARENT: str(os.getpid())}
            # A separate process group: Ctrl-C reaches only the supervisor, which forwards it once.
            worker.pid = os.posix_spawn(sys.executable, command, environment, setpgroup=0)
        settings = share(self._settings, worker.number) | self._ports
        models = self._models
        if models is not None and not serves and self._reads_file:
            models = models | {"content": ""}
        start = Start(worker.number, self._settings.workers, settings, models, self._is_measuring)
        worker.channel.send(start.__dict__, (self._quotas, *(each.slot.descriptor for each in self._workers)))
        asyncio.get_running_loop().add_reader(worker.channel.end, self._receive, worker)
        log.info("worker started worker=%d pid=%d", worker.number, worker.pid)

    def _reap(self) -> None:
        """Reap children that have exited. As PID 1 of a container, the supervisor also inherits orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for worker in self._workers:
                if worker.pid == pid:
                    self._handle_end(worker, os.waitstatus_to_exitcode(status))

    def _handle_end(self, worker: Worker, status: int) -> None:
        """Replace a worker that has exited, unless the server is shutting down or has failed to start."""
        uptime_s = time.monotonic() - worker.started_at
        if worker.channel is not None:
            asyncio.get_running_loop().remove_reader(worker.channel.end)
            worker.channel.close()
        worker.pid, worker.channel = 0, None
        worker.is_listening = worker.is_ready = False
        if worker is self._watcher:
            self._watcher = None
        if status > 0 and not worker.was_ready:  # the models could not be loaded: try the other source
            self._reads_file = not self._reads_file
        if worker.reply is not None and not worker.reply.done():
            worker.reply.set_result({"error": f"Worker {worker.number} ended. Try again."})
        worker.slot.reset()
        is_replaced, worker.is_replaced = worker.is_replaced, False
        if is_replaced and self._deadline == math.inf:
            self._start(worker)
            return
        self._update_status()
        if self._deadline < math.inf:
            # A process that still imports its modules has no handler for the signal.
            is_drained = status == EX_OK or is_replaced or (status == -signal.SIGTERM and not worker.was_ready)
            self._exit_status = self._exit_status or (EX_OK if is_drained else EX_SOFTWARE)
            if not any(other.pid for other in self._workers):
                self._ended.set()
            return
        if status > 0 and not self._has_been_ready and not worker.was_ready:  # it has logged the reason
            self._exit_status = status
            self._drain(signal.SIGTERM)
            return
        worker.failures = 1 if worker.was_ready and uptime_s >= STABLE_S else worker.failures + 1
        delay_s = min(MAX_BACKOFF_S, BACKOFF_S * 2 ** (worker.failures - 1))
        self.metrics.worker_restarts.inc()
        log.error(
            "worker ended, restarting worker=%d status=%s restart_s=%g",
            worker.number, signal.Signals(-status).name if status < 0 else status, delay_s,
        )  # fmt: skip
        worker.restart = asyncio.get_running_loop().call_later(delay_s, self._start, worker)
        self._update_status()

    async def _watch_workers(self) -> None:
        """Detect workers whose event loop hangs, and the end of the drain timeout."""
        while True:
            await asyncio.sleep(PERIOD_S)
            if time.monotonic() > self._deadline:
                log.error("drain timeout exceeded, killing the workers")
                for worker in self._workers:
                    worker.kill(signal.SIGKILL)
            for worker in self._workers:
                if not worker.is_listening:
                    continue
                beats = worker.slot.cells[Cell.BEATS]
                worker.silent_turns = 0 if beats != worker.beats else worker.silent_turns + 1
                worker.beats = beats
                if worker.silent_turns * PERIOD_S >= (HUNG_S if worker.was_ready else LOADING_HUNG_S):
                    log.critical("worker hangs, killing it worker=%d pid=%d", worker.number, worker.pid)
                    worker.kill(signal.SIGKILL)
            self._update_status()

    # Messages from workers.

    def _receive(self, worker: Worker) -> None:
        assert worker.channel is not None
        try:
            received = worker.channel.receive()
        except EOFError:  # the worker is about to exit
            asyncio.get_running_loop().remove_reader(worker.channel.end)
            return
        if received is not None:
            self._handle(worker, received[0])

    def _handle(self, worker: Worker, data: bytes) -> None:
        message = json.loads(data)
        event = message["event"]
        if event in ("prepared", "committed", "aborted"):
            if worker.reply is not None and not worker.reply.done():
                worker.reply.set_result(message)
        elif event == "change":
            start_task(self._change_models(worker, message))
        elif event == "listening":
            worker.is_listening = True
            if not self._is_measuring:  # otherwise, this process may be replaced
                self._acceptor.start()
        elif event == "ready":
            self._become_ready(worker, message)
        elif event == "closing":
            worker.is_listening = worker.is_ready = False
            if not any(other.is_listening for other in self._workers) and self._deadline < math.inf:
                self._acceptor.close()
        elif event == "failed":
            log.critical("worker failed, killing it worker=%d pid=%d", worker.number, worker.pid)
            worker.kill(signal.SIGKILL)
        self._update_status()

    def _become_ready(self, worker: Worker, message: Message) -> None:
        """Let a worker serve. After the first one, start the others."""
        if self._models is None or not self._models["served"]:
            self._models = message["models"]
        if self._is_measuring and self._deadline == math.inf:
            self._select_number(worker, message["texts_per_second"], message["gpu_copies"])
        if not (self._is_measuring or worker.is_replaced):
            worker.is_ready = worker.was_ready = True
            if worker.channel is not None:
                worker.channel.send({"event": "serve"})
            self._acceptor.start()
            self._start_others()

    def _select_number(self, first: Worker, texts_per_second: float, gpu_copies: int | None) -> None:
        """Set the number of workers based on the first worker's measurements with the whole machine.

        `gpu_copies`: how many such workers fit in GPU memory; None without a GPU, or if unknown.
        """
        resident, memory = _resident_bytes(first.pid), available_memory()
        if not resident:  # it has just exited; its successor will measure again
            return
        self._is_measuring = False
        wanted = math.ceil(texts_per_second / LOOP_TEXTS_PER_S)
        # The last worker to load takes `LOADING_FACTOR` times its final memory.
        fitting = None if memory is None else memory // resident
        number = max(1, min(limit for limit in (len(self._workers), wanted, fitting, gpu_copies) if limit is not None))
        log.info(
            "workers selected workers=%d texts_per_second=%.0f wanted=%d fitting_memory=%s fitting_gpu_memory=%s",
            number, texts_per_second, wanted, fitting, gpu_copies,
        )  # fmt: skip
        del self._workers[number:]
        if number > 1:
            self._settings = self._settings.model_copy(update={"workers": number})
            os.close(self._quotas)
            self._quotas = create_board(number)
            first.is_replaced = True
            first.kill(signal.SIGKILL)  # it has no connections yet

    def _start_others(self) -> None:
        """Start the remaining workers, one after another if simultaneous loading could exceed the memory."""
        waiting = [worker for worker in self._workers if not worker.started_at]
        needed, available = len(waiting) * LOADING_FACTOR * _resident_bytes(self._workers[0].pid), available_memory()
        is_scarce = has_gpu(self._settings) or (available is not None and needed > available)
        for worker in waiting[:1] if is_scarce else waiting:
            self._start(worker)

    def _update_status(self) -> None:
        if self._deadline == math.inf and (self._watcher is None or not self._watcher.is_ready):
            # One ready worker watches the models file for all.
            worker = next((worker for worker in self._workers if worker.is_ready), None)
            if worker is not None and worker.channel is not None:
                self._watcher = worker
                worker.channel.send({"event": "watch"})
        if not self._has_been_ready and all(worker.is_ready for worker in self._workers):
            self._has_been_ready = True
            if len(self._workers) > 1 and has_gpu(self._settings):
                log.info("workers share the GPU workers=%d mps=%s", len(self._workers), has_mps())
            first = self._workers[0].channel
            assert first is not None
            first.send({"event": "announce"})
        self.metrics.ready.set(self.status is Status.READY)
        self.metrics.draining.set(self.status is Status.DRAINING)

    # Models.

    async def _change_models(self, requester: Worker, request: Message) -> None:
        """Change the models of all workers or none. Workers prepare one by one, because each checks the free memory."""
        channel, error, prepared = requester.channel, "", []
        async with self._changing:
            while self._is_starting_worker:  # noqa: ASYNC110  # it was told what is in use before the change
                await asyncio.sleep(PERIOD_S)
            ready = [worker for worker in self._workers if worker.is_ready]
            ready.sort(key=lambda worker: worker is not self._watcher)  # GET /admin/models asks it why a change failed
            for worker in ready:
                reply = await self._ask(worker, {"event": "prepare", "change": request["change"]})
                if error := reply["error"]:
                    break
                prepared.append(worker)
            for worker in prepared:
                reply = await self._ask(worker, {"event": "abort" if error else "commit"})
                self._models = reply.get("models", self._models)
        if channel is not None:
            channel.send({"event": "changed", "request": request["request"], "error": error})

    @property
    def _is_starting_worker(self) -> bool:
        return self._deadline == math.inf and any(worker.pid and not worker.is_ready for worker in self._workers)

    async def _ask(self, worker: Worker, message: Message) -> Message:
        """Send a message to a worker, and return its reply, or an error if the worker exits."""
        if worker.channel is None or not worker.channel.send(message):
            return {"error": f"Worker {worker.number} ended. Try again."}
        worker.reply = asyncio.get_running_loop().create_future()
        return await worker.reply

    # Connections.

    def _serve(self, connection: socket.socket) -> bool:
        """Pass a new connection to the worker with the fewest connections; return False if no worker takes it."""
        if not any(worker.pass_connection(REST, connection) for worker in self._accepting()):
            return False
        connection.close()
        return True

    def _accepting(self) -> list[Worker]:
        """Return the workers that accept connections, the one with the fewest first."""
        workers = (worker for worker in self._workers if worker.accepts)
        return sorted(workers, key=lambda worker: (not worker.is_ready, worker.connections))

    def _connect_admin(self) -> Iterator[socket.socket]:
        """Yield a connection to the admin API of each worker that accepts one."""
        # The watcher knows why changes have failed.
        for worker in sorted(self._accepting(), key=lambda worker: worker is not self._watcher):
            own, other = socket.socketpair()
            with other:
                if worker.pass_connection(ADMIN, other):
                    yield own
                else:
                    own.close()

    # Signals.

    def _install_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()

        def on_signal(number: signal.Signals) -> None:
            if self._deadline < math.inf:
                log.warning("second signal received, exiting signal=%s", number.name)
                for worker in self._workers:
                    worker.kill(signal.SIGKILL)
                logging.shutdown()
                os._exit(EX_SOFTWARE)
            self._drain(number)

        def on_hangup() -> None:
            for worker in self._workers:
                if worker.is_listening:  # other workers have no handler yet, and still have to read the files
                    worker.kill(signal.SIGHUP)

        handlers: Sequence[tuple[signal.Signals, Callable[..., None], tuple[signal.Signals, ...]]] = (
            (signal.SIGTERM, on_signal, (signal.SIGTERM,)),
            (signal.SIGINT, on_signal, (signal.SIGINT,)),
            (signal.SIGHUP, on_hangup, ()),
            (signal.SIGCHLD, self._reap, ()),
        )
        for number, handler, arguments in handlers:
            loop.add_signal_handler(number, handler, *arguments)

    def _drain(self, number: int) -> None:
        """Drain every worker. The time limit applies to the whole server."""
        self._deadline = time.monotonic() + self._settings.drain_timeout_ms / 1000 + EXIT_GRACE_S
        log.info("drain started timeout_ms=%d", self._settings.drain_timeout_ms)
        for worker in self._workers:
            if worker.restart is not None:
                worker.restart.cancel()
            worker.kill(signal.SIGTERM)
        self._update_status()
        if not any(worker.pid for worker in self._workers):
            self._ended.set()


SHARED_LIMITS = (
    "max_pending_response_bytes",
    "gpu_memory_limit_bytes",
)
"""Options that limit the memory of the whole server. Each worker gets an equal share. 0 sets no limit.

Values that clients can read, such as the connection limit, still apply to the whole server; see `Settings.worker_...`.
"""


def share(settings: Settings, number: int) -> Message:
    """Return a worker's options as JSON, with its share of the limits of the whole server."""
    shares: dict[str, Any] = {
        name: max(1, math.ceil(limit / settings.workers))
        for name in SHARED_LIMITS
        if (limit := getattr(settings, name))
    }
    threads = settings.threads or available_cpus()
    shares["threads"] = max(1, threads // settings.workers + (number < threads % settings.workers))
    update = settings.model_copy(update=shares)
    document: Message = update.model_dump(mode="json", exclude_unset=True)
    return document


def has_gpu(settings: Settings) -> bool:
    """Return whether models may run on a GPU. Without a runtime, the supervisor can only guess."""
    return settings.provider in ("auto", "cuda") and GPU_DEVICE.exists()


def has_mps() -> bool:
    """Return whether NVIDIA's Multi-Process Service is running, which lets workers use the GPU concurrently."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", MPS_PIPES), "control").exists()


def most_workers() -> int:
    """Return the largest number of workers that "auto" selects. With 1, the server needs no supervisor."""
    return max(1, min(MAX_AUTO_WORKERS, available_cpus() // CORES_PER_WORKER))


def _resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 if that is unknown."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
