"""ApiKeys: what the file may hold, and that without a key every door is closed but the few that
are meant to be open.
"""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc

from service.auth import ApiKeys
from service.config import ConfigError
from service.engine.model_loader import LoadedModel
from service.errors import Unauthenticated
from service.pb import encoder_pb2 as pb
from service.pb.encoder_pb2_grpc import EncoderServiceStub
from tests.conftest import RunningServer, start_server, stop_server
from tests.service.conftest import open_house

KEY = "correct-horse"
OPEN = ("/livez", "/readyz", "/healthz", "/docs", "/openapi.json", "/", "/page/style.css")
BAD = {
    "none": None,
    "empty": b"",
    "no scheme": KEY.encode(),
    "no key": b"Bearer",
    "blank key": b"Bearer ",
    "wrong": b"Bearer battery-staple",
    "two spaces": b"Bearer  correct-horse",
    "trailing": b"Bearer correct-horse2",
    "other case": b"Bearer Correct-Horse",
    "other scheme": b"Basic correct-horse",
    "twice": b"Bearer correct-horse correct-horse",
    "10 KB": b"Bearer " + b"a" * 10_240,
    "not ASCII": b"Bearer \xc3\xa9\xff",
    "a comment of the file": b"Bearer # comment",
}


def keys_of(tmp_path: Path, content: bytes) -> ApiKeys | None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    return ApiKeys.load(path)


def test_keys_are_none_without_a_file() -> None:
    """Everything is open."""
    assert ApiKeys.load(None) is None


def test_file_has_one_key_per_line(tmp_path: Path) -> None:
    """Blank lines and comments left out, blanks round a key too."""
    keys = keys_of(tmp_path, b"# team a\nfirst \n\n  second\r\n#third\n")
    assert keys is not None
    for key in ("first", "second"):
        keys.check(f"Bearer {key}")
    for wrong in ("third", "# team a", "", "#third"):
        with pytest.raises(Unauthenticated):
            keys.check(f"Bearer {wrong}")


@pytest.mark.parametrize("content", [b"", b"# only a comment\n\n", b"\xff\xfe"])
def test_file_without_keys_is_rejected(tmp_path: Path, content: bytes) -> None:
    """Rather than a server that lets nobody in, or everybody."""
    with pytest.raises(ConfigError, match="ATTENDANT_API_KEYS_FILE"):
        keys_of(tmp_path, content)


def test_missing_file_is_rejected(tmp_path: Path) -> None:
    """By the option's name."""
    with pytest.raises(ConfigError, match=r"ATTENDANT_API_KEYS_FILE: .*cannot read"):
        ApiKeys.load(tmp_path / "none")


@pytest.mark.parametrize("name", BAD)
def test_bad_values_are_refused_alike(name: str) -> None:
    """With one message for all, as text or bytes."""
    sent = BAD[name]
    with pytest.raises(Unauthenticated, match="Send: Authorization: Bearer KEY"):
        ApiKeys([KEY, "other"]).check(sent)
    if sent is not None:
        with pytest.raises(Unauthenticated):
            ApiKeys([KEY, "other"]).check(sent.decode("latin-1"))


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_scheme_ignores_case(scheme: str) -> None:
    """As RFC 9110 says."""
    ApiKeys([KEY, "ключ"]).check(f"{scheme} {KEY}")
    ApiKeys([KEY, "ключ"]).check(f"{scheme} ключ".encode())


@pytest.fixture(scope="module")
def locked(default_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that asks for a key."""
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"# comment\n{KEY}\n")
    running = start_server(model_dir=default_artifact, api_keys_file=path)
    yield running
    assert stop_server(running) == 0


def routes(client: httpx.Client) -> set[tuple[str, str]]:
    """Every method and path that the running app describes, and some that it does not have."""
    described = client.get("/openapi.json").json()["paths"]
    found = {(method.upper(), path) for path, methods in described.items() for method in methods}
    closed = {(method, path) for method, path in found if path not in OPEN}
    strange = ("/nothing", "/page/nothing.js", "/metrics", "/livez/", "/%2Flivez", "/docs/oauth2-redirect")
    return closed | {("HEAD", path) for _, path in closed} | {("GET", path) for path in strange} | {("POST", "/livez/")}


@pytest.mark.parametrize("name", [name for name in BAD if name != "blank key"])  # the client strips it
def test_routes_require_a_key_by_default(locked: RunningServer, name: str) -> None:
    """401 with WWW-Authenticate for every method and path, known or not, whatever was wrong with the key."""
    sent = BAD[name]
    headers = {} if sent is None else {b"authorization": sent}
    with httpx.Client(base_url=locked.rest, cookies={"key": KEY}) as client:
        for method, path in sorted(routes(client)):
            answer = client.request(method, path + f"?key={KEY}", headers=headers)
            assert (answer.status_code, answer.headers.get("www-authenticate")) == (401, "Bearer"), (method, path)
            assert KEY not in answer.text


def test_openai_says_it_in_its_own_words(locked: RunningServer) -> None:
    """As its client expects."""
    error = httpx.post(locked.rest + "/v1/embeddings", json={}).json()["error"]
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


def test_routes_accept_a_valid_key(locked: RunningServer) -> None:
    """And no body is read before it is checked."""
    body = {"inputs": "money"}
    answer = httpx.post(locked.rest + "/v1/encode", json=body, headers={"authorization": f"Bearer {KEY}"})
    assert answer.status_code == 200
    assert httpx.post(locked.rest + "/v1/encode", content=b"\xff").status_code == 401


async def test_rest_compares_the_bytes_of_a_key(model: LoadedModel) -> None:
    """A key may have characters beyond ASCII."""
    async with open_house(model, keys=ApiKeys(["schlüssel"])) as house:
        headers = [(b"authorization", "Bearer schlüssel".encode())]
        assert (await house.client.get("/v1/model", headers=headers)).status_code == 200


@pytest.mark.parametrize("path", OPEN)
def test_probes_and_docs_stay_open(locked: RunningServer, path: str) -> None:
    """Neither Kubernetes nor a reader has a key."""
    assert httpx.get(locked.rest + path).status_code == 200


def test_admin_port_requires_no_key(locked: RunningServer) -> None:
    """It listens on loopback; refusals are counted there."""
    found = httpx.get(locked.admin + "/metrics")
    refused = re.search(r'^attendant_rejected_total\{reason="auth"\} (\S+)$', found.text, re.MULTILINE)
    assert found.status_code == 200
    assert refused is not None


@pytest.fixture
async def channel(locked: RunningServer) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(locked.grpc) as opened:
        yield opened


@pytest.mark.parametrize("value", [None, "", "Bearer", "Bearer wrong", f"Bearer  {KEY}", KEY, "Bearer " + "a" * 4000])
async def test_methods_require_a_key_by_default(channel: grpc.aio.Channel, value: str | None) -> None:
    """UNAUTHENTICATED, reflection included, before a stream has sent anything."""
    stub = EncoderServiceStub(channel)  # type: ignore[no-untyped-call]
    metadata = None if value is None else (("authorization", value),)
    reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
    for call in (
        stub.Encode(pb.EncodeRequest(), metadata=metadata),
        stub.Tokenize(pb.TokenizeRequest(), metadata=metadata),
        stub.GetModel(pb.GetModelRequest(), metadata=metadata),
        stub.EncodeStream(metadata=metadata),
        reflect(metadata=metadata),
    ):
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_grpc_requires_a_key_except_health(channel: grpc.aio.Channel) -> None:
    """The same key in the metadata."""
    stub = EncoderServiceStub(channel)  # type: ignore[no-untyped-call]
    found = await stub.GetModel(pb.GetModelRequest(), metadata=(("authorization", f"bearer {KEY}"),))
    assert found.name == "all-MiniLM-L6-v2"
    assert (await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())).status == 1
