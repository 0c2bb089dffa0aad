"""Load shedding: while the queue is nearly full, rejects small requests before uvicorn starts their tasks.

This takes a tenth of the time of a rejection by the engine. At four times the server's capacity, rejections by the
engine took half a core away from accepted requests.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from service.auth import ApiKeys
from service.errors import ServiceError
from service.lifecycle import Lifecycle
from service.metrics import FAST_LANE
from service.request_log import HEADER, TRACE_HEADER, RequestLog
from service.rest.apis import ROUTES, route_path
from service.rest.cors import Cors
from service.rest.middleware import error_response, finish_request, make_record
from service.rest.protocol import Rejection
from service.rest.routes import infinity, native, oip, ollama, openai, tei

MODEL_FIELD = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.)*")?')
"""In valid JSON, quotes within strings are escaped, so this matches only fields."""
LAYERS_FIELD = b'"layers"'


@dataclass(frozen=True, slots=True)
class Target:
    """A fast-lane request's route, model name and API."""

    endpoint: str
    model: str | None
    api: str


class LoadShedder:
    """Rejects requests that exceed the capacity of the fast lane's queue."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        requests: RequestLog,
        keys: ApiKeys | None,
        cors: Cors | None = None,
        root_path: str = "",
    ) -> None:
        self._lifecycle = lifecycle
        self._cors = cors or Cors("")
        self._requests = requests
        self._keys = keys
        self._root_path = root_path

    @property
    def near_capacity(self) -> bool:
        """Whether every request must pass `try_reject`."""
        models = self._lifecycle.loaded
        return models is not None and models.near_capacity

    def try_reject(
        self, method: bytes, path: bytes, headers: Mapping[bytes, bytes], body: bytes, address: str = ""
    ) -> Rejection | None:
        """Return a rejection if the queue has no capacity for the request, else None."""
        if self._lifecycle.rejecting:  # may have begun after the request head was read
            return None
        route = route_path(path, self._root_path) if method == b"POST" else ""
        target = self._find_target(route, headers, body)
        if target is None:
            return None
        record = make_record("POST", route, headers)
        record.endpoint, record.lane, record.api, record.peer = target.endpoint, FAST_LANE, target.api, address
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
        # The engine reserves capacity two loop iterations later: the first starts the middleware, the second the
        # engine. Without this reservation, all requests of an iteration would be accepted here, and most would be
        # rejected by the engine.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, reservation.release)
        return None

    def _find_target(self, path: str, headers: Mapping[bytes, bytes], body: bytes) -> Target | None:
        """Return the target of a POST request, without parsing the body; None if another lane may run it."""
        found = ROUTES.get(("POST", path))
        if found is None:
            return self._find_target_in_path(path, headers, body)
        api, route = found
        if route.shed == "never" or (route.shed == "without layers" and LAYERS_FIELD in body):
            return None
        name = api.name
        if path in native.RERANK_PATHS:
            fields = {field for field in native.API_NAMES if f'"{field}"'.encode() in body}
            name = native.API_NAMES[native.rerank_field(native.RERANK_PATHS[path], fields)]
        if name == tei.NAME:
            return Target(path, None, name)
        try:
            model = _find_model(body)
        except ValueError:
            return None
        names = self._lifecycle.models.names
        if model is not None and name == ollama.NAME:
            model = ollama.served_name(model, names)
        return Target(path, model, name) if model is None or model in names else None

    def _find_target_in_path(self, path: str, headers: Mapping[bytes, bytes], body: bytes) -> Target | None:
        """Return the target of a POST request whose path contains the name of a served model."""
        deployment = openai.DEPLOYMENT_PATH.fullmatch(path)
        if deployment is not None:
            endpoint, name, api, is_fast = openai.DEPLOYMENT, deployment["name"], openai.NAME, True
        else:
            (endpoint, name), api = oip.parse_infer_path(path), oip.API.name
            is_fast = b"content-encoding" not in headers and oip.is_for_fast_lane(body)
        return Target(endpoint, name, api) if is_fast and name in self._lifecycle.models.names else None


def _find_model(body: bytes) -> str | None:
    """Return the model named in a JSON body, without parsing the body; None if there is none.

    Raises `ValueError` if several fields have this name, as in documents with other fields, or for invalid JSON.
    """
    fields = MODEL_FIELD.findall(body)
    if len(fields) > 1:
        raise ValueError
    name: str | None = orjson.loads(fields[0]) if fields and fields[0] else None
    return None if name == infinity.UNSPECIFIED else name
