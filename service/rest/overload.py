"""Load shedding: while the queue is nearly full, small requests are rejected before uvicorn starts their task.

Such a rejection takes a tenth of the time of one by the engine. Under four times the load that the server can take,
rejections by the engine took half a core from the accepted requests.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from service.auth import ApiKeys
from service.errors import ServiceError
from service.lifecycle import Lifecycle
from service.metrics import FAST_LANE
from service.request_log import HEADER, TRACE_HEADER, RequestLog
from service.rest.connections import Rejection
from service.rest.cors import Cors
from service.rest.middleware import error_response, finish_request, make_record
from service.rest.routes import (
    cohere,
    entities,
    fill_mask,
    infinity,
    labels,
    native,
    oip,
    openai,
    rerank,
    similarity,
    tei,
    vllm,
)

NAMED_PATHS = frozenset(
    (
        *labels.PATHS, entities.PATH, similarity.PATH,
        openai.EMBEDDINGS_PATH, *cohere.PATHS, *vllm.PATHS, *infinity.POST_PATHS,
    )
)  # fmt: skip
"""Paths for the fast lane whose requests may name a model."""
LAYERED_PATHS = (native.ENCODE_PATH, fill_mask.PATH)
"""The same, unless a request selects layers."""


@dataclass(frozen=True, slots=True)
class Target:
    """The route of a request for the fast lane, and the model that it names.

    `api` is None if it follows from the path.
    """

    endpoint: str
    model: str | None
    api: str | None = None


class LoadShedder:
    """Rejects requests that exceed the capacity of the fast lane's queue."""

    def __init__(
        self, lifecycle: Lifecycle, requests: RequestLog, keys: ApiKeys | None, cors: Cors | None = None
    ) -> None:
        self.near_capacity = lifecycle.near_capacity
        self._lifecycle = lifecycle
        self._cors = cors or Cors("")
        self._requests = requests
        self._keys = keys

    def try_reject(self, method: bytes, path: bytes, headers: Mapping[bytes, bytes], body: bytes) -> Rejection | None:
        """Return the rejection of a request that the queue has no capacity for; None for any other request."""
        if self._lifecycle.rejecting:  # since the request head was read
            return None
        route = path.decode("latin-1")
        target = self._find_target(route, headers, body) if method == b"POST" else None
        if target is None:
            return None
        record = make_record("POST", route, headers)
        record.endpoint, record.lane = target.endpoint, FAST_LANE
        record.api = target.api or record.api
        try:
            if self._keys is not None:
                record.caller = self._keys.check(headers)
            record.is_known = True
            engine = self._lifecycle.models.find(target.model)
            record.model = engine.name
            reservation = engine.reserve(len(body), caller=record.caller)
        except ServiceError as error:
            response = error_response(record, error)
            response.headers[HEADER] = record.request_id
            if record.traceparent:
                response.headers[TRACE_HEADER] = record.traceparent
            if self._lifecycle.draining:
                response.headers["connection"] = "close"
            self._cors.add_headers(headers, response)
            finish_request(self._requests, record, response.status_code, len(response.body))
            return Rejection(response, record.pause_s, is_known=record.is_known)
        # The engine itself reserves two steps of the loop later: one starts the middleware, the next one the engine.
        # Without this reservation, all requests of a step are accepted here, and most of them rejected by the engine.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, reservation.release)
        return None

    def _find_target(self, path: str, headers: Mapping[bytes, bytes], body: bytes) -> Target | None:
        """Return the target of a POST request, without parsing its body; None if other lanes may run it."""
        if path in rerank.PATHS:
            fields = {name for name in rerank.REQUESTS if f'"{name}"'.encode() in body}
            api, _ = rerank.select_api(rerank.PATHS[path], fields)
            return Target(path, _model_of(body) if api == native.API else None, api)
        if path in tei.FAST_PATHS:
            return Target(path, None)
        if path in NAMED_PATHS or (path in LAYERED_PATHS and native.is_for_fast_lane(body)):
            return Target(path, _model_of(body))
        endpoint, name = oip.parse_infer_path(path)
        is_fast = name in self._lifecycle.models.names and b"content-encoding" not in headers
        return Target(endpoint, name) if is_fast and oip.is_for_fast_lane(body) else None


def _model_of(body: bytes) -> str | None:
    name = native.model_of(body)
    return None if name == infinity.UNSPECIFIED else name
