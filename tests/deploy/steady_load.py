"""Closed-loop loads that record the outcome of every request, one of them with TLS, keys and expected vectors."""

import contextlib
import http.client
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
import numpy as np
from attendant_client import Client, RetryPolicy
from attendant_client.connections import Address
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.transports import GrpcTransport
from numpy.typing import NDArray

from tests.response_contract import tensor_to_array
from tests.stubs import EncoderServiceStub

TEXT = "bank"
LONG_TEXT = "bank " * 200
"""Slow enough that several requests are in flight at any time."""
OK = "OK"
TIMEOUT_S = 30
PAUSE_S = 0.005
"""Pause after each of a sender's requests, which leaves CPU time to replicas that are starting."""
STREAM_REQUESTS = 10
STREAM_PAUSE_S = 0.1

Send = Callable[[], str]
"""Sends one request. Returns OK or an error code, or raises the error of a request that got no response."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A request's code, and when it was in flight, in seconds of time.monotonic()."""

    api: str
    code: str
    started: float
    ended: float


class SteadyLoad:
    """Sends requests from one thread per `Send` until the `with` block ends. `outcomes` gets one item per request."""

    def __init__(self, **senders: list[Send]) -> None:
        self.outcomes: list[Outcome] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(api, send), name=f"load-{api}")
            for api, sends in senders.items()
            for send in sends
        ]

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * TIMEOUT_S)
            assert not thread.is_alive()

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.code != OK]

    @property
    def counts(self) -> Counter[str]:
        """Number of requests per API."""
        return Counter(outcome.api for outcome in self.outcomes)

    def wait_for(self, count: int) -> None:
        """Wait until `count` more requests have finished. None for `TIMEOUT_S` is an error."""
        target = len(self.outcomes) + count
        while len(self.outcomes) < target:
            last = self.outcomes[-1].ended if self.outcomes else self._started
            assert time.monotonic() < last + TIMEOUT_S, "the load makes no progress"
            time.sleep(0.02)

    def _run(self, api: str, send: Send) -> None:
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                code = send()
            except grpc.RpcError as error:
                code = f"{error.code().name}: {error.details()}"
            except Exception as error:  # noqa: BLE001  # a lost request, whatever the error
                code = f"{type(error).__name__}: {error}"
            self.outcomes.append(Outcome(api, code, started, time.monotonic()))  # atomic
            time.sleep(PAUSE_S)


def rest_send(address: str, port: int, text: str = TEXT) -> Send:
    """Return a sender of REST requests without retries, each on a new connection."""

    def send() -> str:
        response, _ = post(http.client.HTTPConnection(address, port, timeout=TIMEOUT_S), text)
        return OK if response.status == 200 else str(response.status)

    return send


def post(connection: http.client.HTTPConnection, text: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    """Send a text over a new connection and close it; return the response and its body.

    A proxy that reloads its configuration closes idle connections. A request that arrives at that moment would be lost
    by the proxy, not by the server.
    """
    body = json.dumps({"inputs": text, "outputs": ["pooled"]})
    with contextlib.closing(connection):
        connection.request(
            "POST", "/v1/encode", body, {"content-type": "application/json", "connection": "close"} | headers
        )
        response = connection.getresponse()
        return response, response.read()


def grpc_send(channel: grpc.Channel, text: str = TEXT) -> Send:
    """Return a sender of gRPC calls without retries beyond the channel's own."""
    stub: Any = EncoderServiceStub(channel)
    request = pb.EncodeRequest(inputs=[pb.Input(text=text)], outputs=[pb.OUTPUT_POOLED])

    def send() -> str:
        stub.Encode(request, timeout=TIMEOUT_S)
        return OK

    return send


def stream_send(channel: grpc.Channel) -> Send:
    """Return a sender of streams that last about a second. One failed request fails its stream."""
    stub: Any = EncoderServiceStub(channel)

    def requests() -> Iterator[pb.EncodeStreamRequest]:
        for number in range(STREAM_REQUESTS):
            encode = pb.EncodeRequest(inputs=[pb.Input(text=TEXT)], outputs=[pb.OUTPUT_POOLED])
            yield pb.EncodeStreamRequest(id=str(number), request=encode)
            time.sleep(STREAM_PAUSE_S)

    def send() -> str:
        responses = list(stub.EncodeStream(requests(), timeout=TIMEOUT_S))
        errors = [response.error.message for response in responses if response.HasField("error")]
        return OK if len(responses) == STREAM_REQUESTS and not errors else f"incomplete stream: {errors}"

    return send


@contextlib.contextmanager
def open_client(target: str, retries: RetryPolicy | None = None) -> Iterator[Client]:
    """Yield a client for a gRPC target, which may list several addresses; a URL names one host."""
    with Client("grpc://127.0.0.1:1", retries=retries or RetryPolicy()) as client:
        client._transport.close()
        client._transport = GrpcTransport(Address(True, target, None), None)
        yield client


def client_send(client: Client, text: str = TEXT) -> Send:
    """Return a sender that uses an `attendant_client.Client`."""

    def send() -> str:
        client.embed([text])
        return OK

    return send


TOLERANCE = 1e-4
"""Tolerance for float32 vectors, whose rounding depends on the other texts in the batch."""


@dataclass
class Caller:
    """The owner of an API key. Each caller sends a different text.

    `references`: the expected vector by the digest of the model. `served` counts responses by digest.
    """

    key: str
    text: str
    references: dict[str, NDArray[np.float32]]
    served: Counter[str] = field(default_factory=Counter)

    def check(self, model: str, vector: NDArray[np.float32]) -> str:
        """Return OK if a vector is the one of this caller's text and of the model that the response names."""
        digest = model.rpartition("@")[2]
        if digest not in self.references:
            return f"unknown model {model}"
        self.served[digest] += 1
        distance = float(np.abs(vector - self.references[digest]).max())
        return OK if distance < TOLERANCE else f"wrong vector of {model} (distance {distance})"


def tls_rest_send(address: str, port: int, context: ssl.SSLContext, caller: Caller) -> Send:
    """Return a sender of REST requests without retries, each on a new connection."""

    def send() -> str:
        connection = http.client.HTTPSConnection(address, port, timeout=TIMEOUT_S, context=context)
        response, content = post(connection, caller.text, **{"x-api-key": caller.key})
        if response.status != 200:
            return f"{response.status} {content[:200]!r}"
        vector = np.array(json.loads(content)["results"][0]["pooled"], np.float32)
        return caller.check(response.headers["x-attendant-model"], vector)

    return send


def tls_grpc_send(channel: grpc.Channel, caller: Caller) -> Send:
    """Return a sender of gRPC calls without retries beyond the channel's own."""
    stub: Any = EncoderServiceStub(channel)
    request = pb.EncodeRequest(inputs=[pb.Input(text=caller.text)], outputs=[pb.OUTPUT_POOLED])

    def send() -> str:
        metadata = (("x-api-key", caller.key),)
        response, details = stub.Encode.with_call(request, timeout=TIMEOUT_S, metadata=metadata)
        trailing = dict(details.trailing_metadata())
        vector = np.asarray(tensor_to_array(response.results[0].pooled), np.float32).ravel()
        return caller.check(trailing["x-attendant-model"], vector)

    return send
