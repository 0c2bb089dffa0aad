"""A load with TLS and API keys that compares each vector with the expected one of the model in the response."""

import contextlib
import http.client
import json
import ssl
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from service.pb import encoder_pb2 as pb
from service.pb.encoder_pb2_grpc import EncoderServiceStub
from tests.deploy.steady_load import OK, TIMEOUT_S, Send
from tests.response_contract import tensor_to_array

TOLERANCE = 1e-4
"""Of float32 vectors, whose rounding depends on the other texts of their batch."""


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
    body = json.dumps({"inputs": caller.text, "outputs": ["pooled"]})

    def send() -> str:
        connection = http.client.HTTPSConnection(address, port, timeout=TIMEOUT_S, context=context)
        headers = {"content-type": "application/json", "connection": "close", "x-api-key": caller.key}
        with contextlib.closing(connection):
            connection.request("POST", "/v1/encode", body, headers)
            response = connection.getresponse()
            content = response.read()
        if response.status != 200:
            return f"{response.status} {content[:200]!r}"
        vector = np.array(json.loads(content)["results"][0]["pooled"], np.float32)
        return caller.check(response.headers["x-attendant-model"], vector)

    return send


def tls_grpc_send(channel: grpc.Channel, caller: Caller) -> Send:
    """Return a sender of gRPC calls without retries beyond the channel's own."""
    stub: Any = EncoderServiceStub(channel)  # type: ignore[no-untyped-call]
    request = pb.EncodeRequest(inputs=[pb.Input(text=caller.text)], outputs=[pb.OUTPUT_POOLED])

    def send() -> str:
        try:
            call = stub.Encode.with_call(request, timeout=TIMEOUT_S, metadata=(("x-api-key", caller.key),))
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
        response, details = call
        trailing = dict(details.trailing_metadata())
        vector = np.asarray(tensor_to_array(response.results[0].pooled), np.float32).ravel()
        return caller.check(trailing["x-attendant-model"], vector)

    return send
