"""A load on REST and gRPC that counts the responses."""

import ssl
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Self

import grpc
import httpx
from attendant_client.pb import encoder_pb2 as pb

from tests.conftest import RunningServer
from tests.stubs import EncoderServiceStub

MODEL = "all-MiniLM-L6-v2"
SIMILARITY = {"queries": "river bank", "documents": ["The bank is muddy.", "Open an account."], "explain": True}
REQUESTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("rest", "/v1/encode", {"inputs": ["money bank grows", "river bank flows"]}),
    ("rest", "/v1/encode", {"inputs": ""}),
    ("rest", "/v1/encode", {"inputs": "bank " * 400, "truncation": "right"}),
    ("rest", "/v1/attend", {"inputs": "She sat on the bank.", "decimals": 2}),
    ("rest", "/v1/similarity", SIMILARITY),
    ("openai", "/v1/embeddings", {"input": "bank", "model": MODEL}),
    ("openai", "/v1/embeddings", {"input": "bank", "model": "another"}),
)
RPCS = (
    ("Encode", pb.EncodeRequest(inputs=[pb.Input(text="money bank grows")])),
    ("Encode", pb.EncodeRequest()),
    ("Tokenize", pb.TokenizeRequest(inputs=[pb.Input(text="bank")])),
)
BULK = ["money bank grows " * 40] * 16
BULK_CLIENTS = 4


class KnownLoad:
    """Sends requests from a thread until the `with` block ends; `responses` counts them by api, endpoint and code."""

    def __init__(self, server: RunningServer, ca: Path, key: str) -> None:
        """Send requests to a server with a certificate of `ca`, a PEM file, and with an API key."""
        self.responses: Counter[tuple[str, str, str]] = Counter()
        context, headers = ssl.create_default_context(cafile=ca), {"authorization": f"Bearer {key}"}
        self._http = httpx.Client(base_url=server.rest, timeout=60, verify=context, headers=headers)
        self._channel = grpc.secure_channel(server.grpc, grpc.ssl_channel_credentials(ca.read_bytes()))
        self._metadata = tuple(headers.items())
        self._stub = EncoderServiceStub(self._channel)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="load")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._channel.close()
        self._http.close()

    def count(self, *codes: str) -> int:
        return sum(count for (_, _, code), count in self.responses.items() if code in codes)

    @property
    def sufficient(self) -> bool:
        """True once both lanes have responded and requests have been rejected, each more than once."""
        return self.responses["rest", "attend", "200"] >= 3 and self.count("429", "RESOURCE_EXHAUSTED") >= 3

    def _run(self) -> None:
        bulk = pb.EncodeRequest(inputs=[pb.Input(text=text) for text in BULK])
        with ThreadPoolExecutor(2 * BULK_CLIENTS) as pool:
            while not self._stop.wait(0.2):
                # The first bulk request fills the queue, so the server rejects some of the others.
                calls = [pool.submit(self._post, "rest", "/v1/encode", {"inputs": BULK}) for _ in range(BULK_CLIENTS)]
                calls += [pool.submit(self._call, "Encode", bulk) for _ in range(BULK_CLIENTS)]
                wait(calls)
                for request in REQUESTS:
                    self._post(*request)
                for name, message in RPCS:
                    self._call(name, message)

    def _post(self, api: str, path: str, body: dict[str, Any]) -> None:
        self._count(api, path, str(self._http.post(path, json=body).status_code))

    def _call(self, name: str, message: Any) -> None:
        try:
            getattr(self._stub, name)(message, metadata=self._metadata)
        except grpc.RpcError as error:
            self._count("grpc", name, error.code().name)
        else:
            self._count("grpc", name, "OK")

    def _count(self, api: str, endpoint: str, code: str) -> None:
        with self._lock:
            self.responses[api, endpoint.rsplit("/", 1)[-1], code] += 1
