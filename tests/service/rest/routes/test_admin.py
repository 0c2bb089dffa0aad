"""The admin API: who may use it, and what it accepts."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import pytest
from prometheus_client import CollectorRegistry

from service.auth import Access
from service.config import Settings
from service.engine.repository import ModelRepository
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.pb import inference_pb2 as pb
from service.rest.app import make_admin_app, make_app
from service.rpc.server import RpcServer
from tests.keys import make_keys, named_key
from tests.stubs import GRPCInferenceServiceStub

ADMIN, CALLER = "admin-secret", "caller-secret"
JSON = {"content-type": "application/json"}
ROUTES = [
    ("GET", "/admin/models"),
    ("POST", "/admin/models/b"),
    ("DELETE", "/admin/models/b"),
    ("GET", "/admin/callers"),
]
REPOSITORY = [("POST", "/v2/repository/models/b/load"), ("POST", "/v2/repository/models/b/unload")]


@dataclass
class Server:
    admin: httpx.AsyncClient
    rest: httpx.AsyncClient
    stub: GRPCInferenceServiceStub
    path: Path

    async def send(self, method: str, path: str, **options: object) -> httpx.Response:
        client = self.admin if path.startswith("/admin") else self.rest
        return await client.request(method, path, **options)  # type: ignore[arg-type]


async def serve(access: Access, artifact: Path, path: Path) -> AsyncIterator[Server]:
    path.write_text("".join(f"[[models]]\nname = '{name}'\nsource = '{artifact}'\n" for name in "ab"))  # noqa: ASYNC240
    settings, metrics = Settings(models_file=path), Metrics(CollectorRegistry())
    lifecycle, repository = Lifecycle(metrics), ModelRepository(settings, metrics)
    if access.keys is not None:
        metrics.create_callers(access.keys.callers)
    models = repository.start(repository.load_all())
    lifecycle.become_ready(models, repository)
    rpc = RpcServer(lifecycle, settings, metrics, access)
    port = await rpc.start("127.0.0.1:0")
    apps = make_admin_app(lifecycle, settings, metrics, access), make_app(lifecycle, settings, metrics, access)
    admin, rest = (httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") for app in apps)
    async with admin, rest, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Server(admin, rest, GRPCInferenceServiceStub(channel), path)
    await rpc.stop(0)
    await repository._finish_retirements()
    await models.close()


@pytest.fixture
def access() -> Access:
    return Access(make_keys(named_key("search", CALLER, 3, 1000)), make_keys(named_key("operator", ADMIN)))


@pytest.fixture
async def server(access: Access, tiny_artifact: Path, tmp_path: Path) -> AsyncIterator[Server]:
    async for opened in serve(access, tiny_artifact, tmp_path / "models.toml"):
        yield opened


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_admin_requests_are_logged(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "attendant")
    for key in (ADMIN, CALLER, "wrong"):
        for method, path in (("DELETE", "/admin/models/b"), ("POST", "/v2/repository/models/b%07/load")):
            await server.send(method, path, headers=JSON | bearer(key))
        call = server.stub.RepositoryModelUnload(
            pb.RepositoryModelUnloadRequest(model_name="b"), metadata=[("authorization", f"Bearer {key}")]
        )
        await call.code()
    lines = [record.getMessage() for record in caplog.records if record.name in ("attendant.auth", "attendant.models")]
    assert [line for line in lines if "request" in line] == [
        "model unload requested model=b admin=operator",
        "model load requested model=b\N{REPLACEMENT CHARACTER} admin=operator",
        "model unload requested model=b admin=operator",
        *(
            f"admin request rejected reason={reason} operation={operation}"
            for reason in ("ADMIN_KEY_REQUIRED", "UNAUTHENTICATED")
            for operation in ("unload", "load", "/inference.GRPCInferenceService/RepositoryModelUnload")
        ),
    ]


@pytest.mark.parametrize(("method", "path"), ROUTES + REPOSITORY)
async def test_routes_need_an_admin_key(server: Server, method: str, path: str) -> None:
    """A caller's key is valid, but not sufficient."""
    for headers, status in (({}, 401), (bearer("wrong"), 401), (bearer(CALLER), 403), ({"x-api-key": CALLER}, 403)):
        response = await server.send(method, path, headers=JSON | headers)
        assert response.status_code == status, headers
        assert ("www-authenticate" in response.headers) == (status == 401)
        assert CALLER not in response.text
    for headers in (bearer(ADMIN), {"x-api-key": ADMIN}):
        assert (await server.send(method, path, headers=JSON | headers)).status_code == 200


@pytest.mark.parametrize("admin_keys", [None])
async def test_without_admin_keys_nobody_has_access(tiny_artifact: Path, tmp_path: Path, admin_keys: None) -> None:
    for keys, status in ((None, 403), (make_keys(named_key("search", CALLER)), 401)):
        async for server in serve(Access(keys), tiny_artifact, tmp_path / "models.toml"):
            for method, path in ROUTES + REPOSITORY:
                response = await server.send(method, path, headers=JSON)
                assert response.status_code == status
                if status == 403:
                    assert "ATTENDANT_ADMIN_KEYS_FILE" in response.text
                else:
                    assert (await server.send(method, path, headers=JSON | bearer(CALLER))).status_code == 403


async def test_admin_key_is_no_api_key(server: Server) -> None:
    response = await server.rest.post("/v1/encode", json={"inputs": "money"}, headers=bearer(ADMIN))
    assert response.status_code == 401
    assert (await server.rest.get("/v2/repository/models/b/load", headers=bearer(ADMIN))).status_code == 401


async def test_rpcs_need_an_admin_key(server: Server) -> None:
    for method, request in (
        (server.stub.RepositoryModelUnload, pb.RepositoryModelUnloadRequest(model_name="b")),
        (server.stub.RepositoryModelLoad, pb.RepositoryModelLoadRequest(model_name="b")),
    ):
        for key, code in (("wrong", "UNAUTHENTICATED"), (CALLER, "PERMISSION_DENIED")):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await method(request, metadata=(("x-api-key", key),))
            assert raised.value.code().name == code
        await method(request, metadata=(("authorization", f"Bearer {ADMIN}"),))


async def test_models_are_listed_unloaded_and_loaded_in_every_api(server: Server) -> None:
    headers = JSON | bearer(ADMIN)

    async def states() -> tuple[list[bool], list[str], list[str]]:
        listed = (await server.send("GET", "/admin/models", headers=headers)).json()["models"]
        index = (await server.rest.post("/v2/repository/index", headers=bearer(CALLER))).json()
        key = (("x-api-key", CALLER),)
        response = await server.stub.RepositoryIndex(pb.RepositoryIndexRequest(), metadata=key)
        ready = await server.stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True), metadata=key)
        assert [model["state"] for model in index] == [model.state for model in response.models]
        body = {"ready": True}
        only = (await server.rest.post("/v2/repository/index", json=body, headers=bearer(CALLER))).json()
        assert [model["name"] for model in only] == [model.name for model in ready.models]
        return [model["ready"] for model in listed], [model["state"] for model in index], [m["name"] for m in only]

    both, unloaded = ([True, True], ["READY", "READY"], ["a", "b"]), ([True, False], ["READY", "UNAVAILABLE"], ["a"])
    assert await states() == both
    key = (("x-api-key", ADMIN),)
    parameters = {"unload_dependents": pb.ModelRepositoryParameter(bool_param=False)}
    unload = pb.RepositoryModelUnloadRequest(model_name="b", parameters=parameters)
    for unload_model, path in (
        (lambda: server.send("DELETE", "/admin/models/b", headers=headers), "/admin/models/b"),
        (lambda: server.stub.RepositoryModelUnload(unload, metadata=key), "/v2/repository/models/b/load"),
    ):
        await unload_model()
        assert await states() == unloaded
        assert (await server.send("POST", path, headers=headers)).status_code == 200
        assert await states() == both
    unloading = {"parameters": {"unload_dependents": False}}
    response = await server.rest.post("/v2/repository/models/b/unload", json=unloading, headers=headers)
    assert (response.status_code, response.json(), await states()) == (200, {}, unloaded)
    await server.stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="b"), metadata=key)
    assert await states() == both


async def test_names_are_not_paths(server: Server, tiny_artifact: Path) -> None:
    for name in ("c", str(tiny_artifact), "%2e%2e%2fa"):
        for method in ("POST", "DELETE"):
            response = await server.send(method, f"/admin/models/{name}", headers=JSON | bearer(ADMIN))
            assert response.status_code == 404
            assert response.json()["error"]["message"].endswith('. The models are "a" and "b".')


async def test_default_model_cannot_be_unloaded(server: Server) -> None:
    response = await server.send("DELETE", "/admin/models/a", headers=bearer(ADMIN))
    assert (response.status_code, response.json()["error"]["reason"]) == (409, "DEFAULT_MODEL_REQUIRED")


async def test_failed_load_says_why(server: Server) -> None:
    server.path.write_text("[[models]]\nname = 'a'\n")
    response = await server.send("POST", "/admin/models/a", headers=JSON | bearer(ADMIN))
    error = response.json()["error"]
    assert (response.status_code, error["reason"]) == (409, "LOAD_FAILED")
    assert "models[0].source: missing" in error["message"]


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({}, b"", 415),
        ({"content-type": "text/plain"}, b"{}", 415),
        ({"content-type": "application/jsonx"}, b"{}", 415),
        ({"content-type": "application/json; charset=utf-8"}, b"{}", 200),
        (JSON, b"", 200),
        (JSON, b"[", 400),
        (JSON, b'{"path": "/models/x"}', 422),
        (JSON, b" " * 1025, 413),
        (JSON | {"host": ""}, b"", 403),
        (JSON | {"host": "evil.example"}, b"", 403),
    ],
)
async def test_load_needs_json_and_a_host(server: Server, headers: dict[str, str], body: bytes, status: int) -> None:
    """A web page can neither set these headers nor rebind its name to this server."""
    response = await server.send("POST", "/admin/models/b", headers=headers | bearer(ADMIN), content=body)
    assert response.status_code == status, response.text


@pytest.mark.parametrize("action", ["load", "unload"])
async def test_unsupported_parameters_are_rejected(server: Server, action: str) -> None:
    body = {"parameters": {"config": "{}"}}
    response = await server.rest.post(f"/v2/repository/models/b/{action}", json=body, headers=bearer(ADMIN))
    assert (response.status_code, response.json()["error"]) == (400, "parameters.config: not supported. Remove it.")


@pytest.mark.parametrize("action", ["load", "unload"])
async def test_unknown_fields_are_named(server: Server, action: str) -> None:
    path, headers = f"/v2/repository/models/b/{action}", bearer(ADMIN)
    strict = await server.rest.post(path, json={"source": "x"}, headers=headers | {"x-attendant-strict": "1"})
    assert (strict.status_code, strict.json()["error"]) == (400, "source: unknown field. Remove it.")
    response = await server.rest.post(path, json={"source": "x"}, headers=headers)
    assert (response.status_code, response.headers["x-attendant-ignored"]) == (200, "source")


async def test_callers_are_listed(server: Server) -> None:
    await server.rest.post("/v1/encode", json={"inputs": "money"}, headers=bearer(CALLER))
    (caller,) = (await server.send("GET", "/admin/callers", headers=bearer(ADMIN))).json()["callers"]
    assert caller == {
        "name": "search", "weight": 3, "tokens_per_second": 1000, "retry_after_s": 0.0, "queued_tokens": 0,
        "ok_requests": 1, "rejected_requests": 0, "cancelled_requests": 0, "error_requests": 0, "tokens": 3,
    }  # fmt: skip
