"""`make path`: the path of one request through the code, for each API: files, Python calls and hand-offs.

The server runs in this process under a profile function, which counts calls into the project's files between the first
and the last byte of one request on a warm connection. Resuming a coroutine or a generator counts as a call. A hand-off
is a change of the thread or of the asyncio task between two calls.

With `--bytecodes`, counts executed bytecodes instead, in libraries too: a measure of the Python code that does not
depend on the machine or on what else runs on it.
"""

import argparse
import asyncio
import faulthandler
import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import uvloop
from attendant_client.pb import encoder_pb2

from service.app import App
from service.config import Settings, load_settings
from tests.stubs import EncoderServiceStub

ROOT = Path(__file__).resolve().parents[1]
TEXT = "She sat on the bank of the river and watched the boats go by."
TEXTS = [" ".join([TEXT] * (1 + index % 4)) for index in range(32)]
"""Of about 15, 30, 45 and 60 tokens."""
MODEL = "all-MiniLM-L6-v2"
WARM_REQUESTS = 20
RECORDED_REQUESTS = 20
"""The request with the fewest calls counts: a periodic task of the server may run during the others."""
START_TIMEOUT_S = 120
TIMEOUT_S = 240
NOT_LOGIC = ("metrics", "observer", "log", "schema", "errors", "manifest")
"""Words in the names of files and folders of metrics, logs and types, which are counted separately."""

Send = Callable[[], None]


@dataclass
class RequestPath:
    """Calls into the project's files, in the order in which the files were entered."""

    calls: Counter[str] = field(default_factory=Counter)
    functions: Counter[tuple[str, str]] = field(default_factory=Counter)
    hand_offs: int = 0

    @property
    def logic(self) -> list[str]:
        """The files, except those for metrics, logs and types."""
        return [name for name in self.calls if not any(word in name for word in NOT_LOGIC)]

    def describe(self, unit: str) -> str:
        return (
            f"{len(self.calls)} files, {len(self.logic)} without metrics, logs and types; "
            f"{self.calls.total()} {unit}, {self.hand_offs} hand-offs"
        )


class Recorder:
    """The profile function of every thread. It records while a request is in progress."""

    def __init__(self) -> None:
        self.path: RequestPath | None = None
        self._names: dict[str, str | None] = {}
        self._last: tuple[int, int] | None = None

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        path = self.path
        if path is None or event != "call":
            return
        code = frame.f_code
        name = self._name(code.co_filename)
        if name is None:
            return
        path.calls[name] += 1
        path.functions[name, code.co_qualname] += 1
        place = (threading.get_ident(), _current_task())
        if self._last is not None and place != self._last:
            path.hand_offs += 1
        self._last = place

    def trace(self, frame: FrameType, event: str, argument: object) -> "Callable[..., Any]":
        """The trace function of every thread, which counts bytecodes."""
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode" and (path := self.path) is not None:
            name = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
            path.calls[name] += 1
            path.functions[name, frame.f_code.co_qualname] += 1
        return self.trace

    @contextmanager
    def recording(self) -> Iterator[RequestPath]:
        """Record the calls of the body."""
        self._last = None
        path = self.path = RequestPath()
        try:
            yield path
        finally:
            self.path = None

    def _name(self, filename: str) -> str | None:
        """Return a file's path in the project, or None for other and for generated code."""
        if filename not in self._names:
            path = Path(filename)
            inside = path.is_relative_to(ROOT / "service") or path.is_relative_to(ROOT / "model")
            self._names[filename] = str(path.relative_to(ROOT)) if inside and path.parent.name != "pb" else None
        return self._names[filename]


def _current_task() -> int:
    try:
        return id(asyncio.current_task())
    except RuntimeError:  # no event loop in this thread
        return 0


async def trace(settings: Settings, recorder: Recorder) -> dict[str, RequestPath]:
    """Serve, and return the path of one request through each API."""
    serving = asyncio.create_task(App(settings).run())
    try:
        return await asyncio.to_thread(trace_requests, settings, recorder)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await serving


def trace_requests(settings: Settings, recorder: Recorder) -> dict[str, RequestPath]:
    """Send warm-up requests and then the recorded ones through each API, from a thread that is not profiled."""
    sys.setprofile(None)
    sys.settrace(None)
    wait_until_ready(settings.admin_port)
    connection = http.client.HTTPConnection("127.0.0.1", settings.rest_port, timeout=30)
    with grpc.insecure_channel(f"127.0.0.1:{settings.grpc_port}") as channel:
        stub = EncoderServiceStub(channel)
        request = encoder_pb2.EncodeRequest(inputs=[encoder_pb2.Input(text=TEXT)])
        batch = encoder_pb2.EncodeRequest(inputs=[encoder_pb2.Input(text=text) for text in TEXTS])
        senders: dict[str, Send] = {
            "REST /v1/encode": lambda: post(connection, "/v1/encode", {"inputs": [TEXT]}),
            "REST /v1/rerank": lambda: post(connection, "/v1/rerank", {"query": TEXT, "documents": [TEXT]}),
            "OpenAI /v1/embeddings": lambda: post(connection, "/v1/embeddings", {"input": TEXT, "model": MODEL}),
            "TEI /embed": lambda: post(connection, "/embed", {"inputs": TEXT}),
            "REST /v1/attend": lambda: post(connection, "/v1/attend", {"inputs": [TEXT]}),
            "gRPC Encode": lambda: stub.Encode(request, timeout=30),
            "REST /v1/encode, 32 texts, base64": lambda: post(
                connection, "/v1/encode", {"inputs": TEXTS, "encoding_format": "base64"}
            ),
            "REST /v1/encode, 32 texts, JSON": lambda: post(connection, "/v1/encode", {"inputs": TEXTS}),
            "gRPC Encode, 32 texts": lambda: stub.Encode(batch, timeout=30),
        }
        return {name: trace_one(send, recorder) for name, send in senders.items()}


def wait_until_ready(admin_port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/readyz", timeout=5):
            return
        time.sleep(0.1)
    raise SystemExit(f"path: the server was not ready after {START_TIMEOUT_S} s")


def trace_one(send: Send, recorder: Recorder) -> RequestPath:
    for _ in range(WARM_REQUESTS):
        send()
    paths = []
    for _ in range(RECORDED_REQUESTS):
        with recorder.recording() as path:
            send()
        paths.append(path)
    return min(paths, key=lambda path: path.calls.total())


def post(connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> None:
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise SystemExit(f"path: {path} returned {response.status}: {content.decode()}")


def measure_paths(*, bytecodes: bool) -> dict[str, RequestPath]:
    """Trace one request through each API of a server in this process."""
    ports = [free_port() for _ in range(3)]
    flags = zip(("--rest-port", "--grpc-port", "--admin-port"), map(str, ports), strict=True)
    settings = load_settings([part for flag in flags for part in flag])
    recorder = Recorder()
    if bytecodes:
        threading.settrace(recorder.trace)
        sys.settrace(recorder.trace)
    else:
        threading.setprofile(recorder)
        sys.setprofile(recorder)
    run = uvloop.run if bytecodes else asyncio.run  # asyncio's own loop is Python, the server's is not
    try:
        return run(trace(settings, recorder))
    finally:
        for stop in (sys.setprofile, threading.setprofile, sys.settrace, threading.settrace):
            stop(None)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def main(arguments: Sequence[str]) -> int:
    """Print the path of one request through each API."""
    parser = argparse.ArgumentParser(prog="python -m bench.request_path", description=__doc__)
    parser.add_argument("--functions", action="store_true", help="also list the functions of each file")
    parser.add_argument("--bytecodes", action="store_true", help="count bytecodes instead of calls")
    options = parser.parse_args(arguments)
    faulthandler.dump_traceback_later(TIMEOUT_S, exit=True)
    for api, path in measure_paths(bytecodes=options.bytecodes).items():
        print(f"\n{api}: {path.describe(unit := 'bytecodes' if options.bytecodes else 'calls')}")
        for name, count_of_file in path.calls.items():
            print(f"  {count_of_file:5} {unit}  {name}{'' if name in path.logic else '  (not counted)'}")
            for (file, function), count in path.functions.items() if options.functions else ():
                if file == name:
                    print(f"  {count:10}  {function}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
