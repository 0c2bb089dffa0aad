"""API keys: the key file's format, and the routes and methods that require a key."""

import asyncio
import codecs
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from attendant_client.pb import encoder_pb2 as pb
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc
from prometheus_client import CollectorRegistry

from service.auth import ADMIN_OPTION, NAMED, ApiKeys, parse_keys
from service.callers import ANONYMOUS, ANONYMOUS_NAME
from service.config import ConfigError
from service.errors import Unauthenticated
from service.metrics import Metrics
from tests.conftest import RunningServer, serving, start_server, wait_until
from tests.keys import bearer, make_keys, named_key
from tests.stubs import EncoderServiceStub

KEY = "correct-horse"
PUBLIC = (
    "/livez", "/readyz", "/healthz", "/health", "/ping", "/v2/health/live", "/v2/health/ready", "/docs",
    "/openapi.json", "/", "/page/style.css",
)  # fmt: skip
INVALID = {
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
    "10 KiB": b"Bearer " + b"a" * 10_240,
    "not ASCII": b"Bearer \xc3\xa9\xff",
    "comment of the file": b"Bearer # comment",
}


def load_keys(tmp_path: Path, content: bytes) -> ApiKeys | None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    return ApiKeys.load(path)


def test_file_has_one_key_per_line(tmp_path: Path) -> None:
    """Blank lines, comments and whitespace around keys are ignored."""
    keys = load_keys(tmp_path, b"# team a\nfirst \n\n  second\r\n#third\n")
    assert keys is not None
    for key in ("first", "second"):
        assert keys.check(bearer(key)) is ANONYMOUS
    for wrong in ("third", "# team a", "", "#third"):
        with pytest.raises(Unauthenticated):
            keys.check(bearer(wrong))


@pytest.mark.parametrize("content", [None, b"", b"# only a comment\n\n", b"\xff\xfe"])
def test_file_without_keys_is_rejected(tmp_path: Path, content: bytes | None) -> None:
    with pytest.raises(ConfigError, match="ATTENDANT_API_KEYS_FILE"):
        ApiKeys.load(tmp_path / "none") if content is None else load_keys(tmp_path, content)


def test_last_line_may_lack_a_newline(tmp_path: Path) -> None:
    """As in mounted Secrets. In a file with names, a plain key could be the beginning of a name."""
    named = named_key("team", "key").encode()
    for content, name in ((named, "team"), (b"key", ANONYMOUS_NAME), (b"other\nkey", ANONYMOUS_NAME)):
        keys = load_keys(tmp_path, content)
        assert keys is not None
        assert keys.check(bearer("key")).name == name
    previous = parse_keys(tmp_path, named).callers
    for content, before in ((named + b"\nbob", {}), (b"bob", previous)):
        with pytest.raises(ConfigError, match=r"line \d of .* has no newline, so it may be the rest of a line with"):
            parse_keys(tmp_path, content, before)


@pytest.mark.parametrize("name", INVALID)
def test_invalid_header_is_rejected(name: str) -> None:
    header = INVALID[name]
    with pytest.raises(Unauthenticated, match="Send it as Authorization: Bearer KEY"):
        make_keys(KEY, "other").check({} if header is None else {b"authorization": header})


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_scheme_ignores_case(scheme: str) -> None:
    """See RFC 9110."""
    assert make_keys(KEY).check({b"authorization": f"{scheme} {KEY}".encode()}) is ANONYMOUS


@pytest.fixture(scope="module")
def secured(tiny_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that requires a key."""
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"# comment\n{KEY}\n")
    with serving(model_dir=tiny_artifact, api_keys_file=path) as running:
        yield running


def private_routes(client: httpx.Client) -> set[tuple[str, str]]:
    """Return methods and paths that require a key: all in the OpenAPI document, plus some unknown ones."""
    paths = client.get("/openapi.json").json()["paths"]
    routes = {(method.upper(), path) for path, methods in paths.items() for method in methods if path not in PUBLIC}
    assert ("POST", "/embed") in routes
    unknown = ("/nothing", "/page/nothing.js", "/metrics", "/livez/", "/%2Flivez", "/docs/oauth2-redirect")
    return (
        routes
        | {("HEAD", path) for _, path in routes}
        | {("GET", path) for path in unknown}
        | {("POST", "/livez/"), ("POST", "/")}
    )


@pytest.mark.parametrize("name", [name for name in INVALID if name != "blank key"])  # the client strips it
def test_routes_require_a_key_by_default(secured: RunningServer, name: str) -> None:
    """Covers known and unknown methods and paths."""
    header = INVALID[name]
    headers = {} if header is None else {b"authorization": header}
    with httpx.Client(base_url=secured.rest, cookies={"key": KEY}) as client:
        for method, path in sorted(private_routes(client)):
            response = client.request(method, path + f"?key={KEY}", headers=headers)
            assert (response.status_code, response.headers.get("www-authenticate")) == (401, "Bearer"), (method, path)
            assert KEY not in response.text


def test_routes_accept_a_valid_key(secured: RunningServer) -> None:
    """The key is checked before the body."""
    body = {"inputs": "money"}
    response = httpx.post(secured.rest + "/v1/encode", json=body, headers={"authorization": f"Bearer {KEY}"})
    assert response.status_code == 200
    assert httpx.post(secured.rest + "/v1/encode", content=b"\xff").status_code == 401


@pytest.mark.parametrize("key", ["schlüssel", "two words", "tab\tbed", "del\x7f"])
def test_key_that_no_header_can_carry_is_rejected_at_startup(tmp_path: Path, key: str) -> None:
    (tmp_path / "keys").write_text(f"# comment\ngood\n{key}\n", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"ATTENDANT_API_KEYS_FILE: line 3 of .* is not ASCII without spaces"
    ) as raised:
        ApiKeys.load(tmp_path / "keys")
    assert key not in str(raised.value)


@pytest.mark.parametrize("path", PUBLIC)
def test_probes_and_docs_require_no_key(secured: RunningServer, path: str) -> None:
    """Kubernetes and people who read the docs have no key."""
    assert httpx.get(secured.rest + path).status_code == 200


@pytest.fixture
async def channel(secured: RunningServer) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(secured.grpc) as opened:
        yield opened


@pytest.mark.parametrize("value", [None, "", "Bearer", "Bearer wrong", f"Bearer  {KEY}", KEY, "Bearer " + "a" * 4000])
async def test_methods_require_a_key_by_default(channel: grpc.aio.Channel, value: str | None) -> None:
    """Streams and reflection must be rejected before their first message."""
    stub = EncoderServiceStub(channel)
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
    stub = EncoderServiceStub(channel)
    info = await stub.GetModel(pb.GetModelRequest(), metadata=(("authorization", f"bearer {KEY}"),))
    assert info.name == "tiny-bert"
    assert (await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())).status == 1


def test_named_keys_have_callers() -> None:
    keys = make_keys("plain", named_key("team-a", "first"), named_key("team-a", "second"), named_key("b", "x", 3, 500))
    assert [keys.check(bearer(key)).terms for key in ("plain", "first", "second", "x")] == [
        ("anonymous", 1, None), ("team-a", 1, None), ("team-a", 1, None), ("b", 3, 500),
    ]  # fmt: skip
    assert keys.check(bearer("first")) is keys.check(bearer("second"))
    assert keys.check({b"x-api-key": b"x"}).name == keys.check({b"api-key": b"x"}).name == "b"
    for wrong in ("team-a", named_key("b", "x"), named_key("b", "x").split(":")[1]):
        with pytest.raises(Unauthenticated):
            keys.check(bearer(wrong))
    with pytest.raises(Unauthenticated):  # a wrong bearer token is not replaced by another header
        keys.check({**bearer("wrong"), b"x-api-key": b"x"})


def test_admin_keys_have_no_weight(tmp_path: Path) -> None:
    path = tmp_path / "admin"
    for line in (named_key("a", "k", 1), named_key("a", "k", 1, 5)):
        with pytest.raises(ConfigError, match=r"ATTENDANT_ADMIN_KEYS_FILE: line 1 of .* has a weight"):
            parse_keys(path, line.encode(), option=ADMIN_OPTION)
    keys = ApiKeys(parse_keys(path, named_key("a", "k").encode(), option=ADMIN_OPTION), option=ADMIN_OPTION)
    with pytest.raises(Unauthenticated, match="invalid admin key"):
        keys.check({})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a:" + "0" * 63], r"line 1 of .* has a colon, but is not name:sha256"),
        (["ok", "a b:" + "0" * 64], r"line 2 of .* has a colon, but is not name:sha256"),
        (["bob:"], r"line 1 of .* has a colon, but is not name:sha256.*\. Correct it, or use a key without a colon"),
        ([named_key("bob", "k", 1) + ":"], r"line 1 of .* has a colon, but is not name:sha256"),
        ([named_key("a", "k", 0)], "weight 0"),
        ([named_key("a", "k", 101)], "weight 101"),
        ([named_key("a", "k", 1, 0)], "quota of 0"),
        ([named_key("a", "k", 1), named_key("a", "l", 2)], "line 2 of .*: a has weight 2 and no quota, but weight 1"),
        ([named_key("a", "k", 1, 5), named_key("a", "l", 1)], "a has weight 1 and no quota, but weight 1 and quota 5"),
        ([named_key("a", "k"), named_key("b", "k")], r"line 2 of .* repeats a key of another caller"),
        ([named_key("anonymous", "k")], "name of keys without a name"),
        ([named_key(f"c{number}", str(number)) for number in range(257)], r"too many callers .*257, limit 256"),
    ],
)
def test_invalid_callers_are_rejected(lines: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        make_keys(*lines)
    assert not re.search(r"[0-9a-f]{32}", str(raised.value))


CUT = (
    f"# \u00fcber\n{named_key('alice', 'one')}\na-plain-key\n{named_key('bob', 'two', 10)}\n\n"
    f"{named_key('alice', 'three')}\nanother.plain_key\r\n{named_key('carol', 'four', 10, 5000)}\nlast-key\n"
).encode()
"""Lines of every kind."""


def test_cut_file_has_no_other_keys() -> None:
    """A reload that loses a caller fails unless the file was cut after a complete line, which nobody can see."""
    whole = parse_keys(Path("keys"), CUT)
    with_mark = parse_keys(Path("keys"), codecs.BOM_UTF8 + CUT, whole.callers)
    assert with_mark.entries == whole.entries
    digests, line_ends = {digest for digest, _ in whole.entries}, 0
    for end in range(len(CUT)):
        try:
            table = parse_keys(Path("keys"), CUT[:end], whole.callers)
        except ConfigError:
            continue
        assert {digest for digest, _ in table.entries} <= digests
        last = CUT[:end].replace(b"\r", b"\n").rpartition(b"\n")[2].decode()
        assert not last or NAMED.fullmatch(last) or last.startswith("#"), last
        line_ends += not last
    assert line_ends > 5


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_keys_are_reloaded_when_the_file_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An invalid or missing file keeps the keys in use, and is reported once. A mounted Secret is a symbolic link."""
    versions = [tmp_path / name for name in ("one", "two")]
    versions[0].write_text(f"{named_key('a', 'old', 1, 10)}\n{named_key('gone', 'gone')}\n")
    versions[1].write_text(f"{named_key('a', 'old', 1, 10)}\n{named_key('a', 'new', 1, 10)}\n")
    path = tmp_path / "keys"
    path.symlink_to(versions[0])
    keys, metrics = ApiKeys.load(path), Metrics(CollectorRegistry())
    assert keys is not None
    watch = keys.watch(metrics)
    before = keys.check(bearer("old"))
    path.unlink()
    for _ in range(2):
        asyncio.run(watch.check())
    assert keys.check(bearer("old")) is before
    assert (sample(metrics, "attendant_reload_failing", subject="api_keys"), len(caplog.records)) == (1, 1)
    path.symlink_to(versions[1])
    asyncio.run(watch.check())
    assert keys.check(bearer("old")) is keys.check(bearer("new")) is before  # with the state of its quota
    with pytest.raises(Unauthenticated):
        keys.check(bearer("gone"))
    assert sample(metrics, "attendant_reload_failing", subject="api_keys") == 0
    assert sample(metrics, "attendant_caller_tokens_total", caller="gone") is None
    for result in ("success", "error"):
        assert sample(metrics, "attendant_reloads_total", subject="api_keys", result=result) == 1


def cancel_request(server: RunningServer, key: str) -> None:
    """Send the beginning of a request, and close the connection once the server has counted it."""
    host, port = server.rest.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/encode HTTP/1.1\r\nHost: {host}\r\nx-api-key: {key}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        wait_until(lambda: "attendant_requests_in_flight 1.0" in httpx.get(f"{server.admin}/metrics").text)


def cancel_stream(server: RunningServer, key: str) -> None:
    """Cancel a stream after its first response."""
    ended = threading.Event()

    def messages() -> Iterator[pb.EncodeStreamRequest]:
        yield pb.EncodeStreamRequest(id="1", request=pb.EncodeRequest(inputs=[pb.Input(text="money")]))
        ended.wait()

    with grpc.insecure_channel(server.grpc) as channel:
        call = EncoderServiceStub(channel).EncodeStream(messages(), metadata=(("x-api-key", key),))
        assert next(call).id == "1"
        call.cancel()
    ended.set()  # the end of the messages, if it arrived first, would end the call with OK


def test_server_applies_new_keys_and_names_callers(tiny_artifact: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    limited = named_key("limited", "few", 1, 1)
    path.write_text(f"{limited}\n{named_key('search', 'old')}")
    running = start_server(model_dir=tiny_artifact, api_keys_file=path, access_log="all", log_format="json")
    try:

        def status(key: str) -> int:
            headers = {"x-api-key": key}
            return httpx.post(f"{running.rest}/v1/encode", json={"inputs": "money"}, headers=headers).status_code

        assert (status("old"), status("new")) == (200, 401)
        path.write_text(f"{limited}\n{named_key('search', 'new')}")
        wait_until(lambda: status("new") == 200)
        assert status("old") == 401
        with grpc.insecure_channel(running.grpc) as channel:
            stub = EncoderServiceStub(channel)
            for header in ("x-api-key", "api-key"):
                assert stub.GetModel(pb.GetModelRequest(), metadata=((header, "new"),)).name == "tiny-bert"
            request = pb.EncodeRequest(inputs=[pb.Input(text="money " * 20)])
            stub.Encode(request, metadata=(("x-api-key", "few"),))
            with pytest.raises(grpc.RpcError) as raised:
                stub.Encode(request, metadata=(("x-api-key", "few"),))
            assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert dict(raised.value.trailing_metadata())["grpc-retry-pushback-ms"]
            tokenize = pb.TokenizeRequest(inputs=[pb.Input(text="money")])  # not charged, so not rejected either
            assert stub.Tokenize(tokenize, metadata=(("x-api-key", "few"),)).results
        tokenized = httpx.post(f"{running.rest}/v1/tokenize", json={"inputs": "money"}, headers={"x-api-key": "few"})
        assert tokenized.status_code == 200
        rejected = httpx.post(f"{running.rest}/v1/encode", json={"inputs": "money"}, headers={"x-api-key": "few"})
        assert (rejected.status_code, rejected.json()["error"]["reason"]) == (429, "QUOTA_EXCEEDED")
        assert 5 <= int(rejected.headers["retry-after"]) <= 20

        def cancelled() -> float:
            text = httpx.get(f"{running.admin}/metrics").text
            return float(re.findall(r'caller_requests_total{caller="search",outcome="cancelled"} (.+)', text)[0])

        def cancels_a_stream() -> bool:
            """It may end with OK instead: to the server, its messages may end before it is cancelled."""
            cancel_stream(running, "new")
            return cancelled() > 1

        cancel_request(running, "new")
        wait_until(lambda: cancelled() == 1)
        wait_until(cancels_a_stream)
        text = httpx.get(f"{running.admin}/metrics").text
        assert 'attendant_caller_requests_total{caller="search",outcome="error"} 0.0' in text
        assert 'attendant_caller_requests_total{caller="limited",outcome="rejected"} 2.0' in text
        assert 'attendant_caller_requests_total{caller="search",outcome="ok"}' in text
        for code in (401, 429):
            assert f'attendant_requests_total{{api="rest",code="{code}",endpoint="/v1/encode",model="none"}}' in text
    finally:
        running.process.terminate()
        _, log = running.process.communicate(timeout=30)
    assert '"caller": "search"' in log or '"caller":"search"' in log
