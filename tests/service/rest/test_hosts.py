"""The Host header, and cross-origin browser requests."""

import httpx
import pytest

from service.config import ConfigError, load_settings
from service.engine.model_loader import LoadedModel
from service.errors import HostNotAllowed
from service.rest.app import make_app
from service.rest.hosts import HostCheck
from tests.service.conftest import GOLDEN, open_harness
from tests.service.rest.test_server import serving

ORIGIN = "https://attendant.example"


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "page.localhost", "127.0.0.1", "127.8.8.8:1", "[::1]"])
def test_loopback_names_are_allowed(host: str) -> None:
    HostCheck("127.0.0.1", "").check(host.encode())
    HostCheck("::1", "").check(host.encode())


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "["]
)
def test_other_names_are_rejected_on_loopback(host: str) -> None:
    with pytest.raises(HostNotAllowed, match=r"^Host: not allowed \(\".*\"\)\. Add it to ATTENDANT_ALLOWED_HOSTS\.$"):
        HostCheck("127.0.0.1", "").check(host.encode())


def test_listed_names_are_allowed() -> None:
    check = HostCheck("127.0.0.1", "attendant.example, Other.example")
    for host in ("attendant.example:443", "other.example", "localhost"):
        check.check(host.encode())


def test_patterns_and_wildcards() -> None:
    check = HostCheck("127.0.0.1", "*.example")
    for host in ("a.example", "b.a.example:443", "localhost"):
        check.check(host.encode())
    for host in ("example", "badexample", "a.example.org"):
        with pytest.raises(HostNotAllowed):
            check.check(host.encode())
    HostCheck("127.0.0.1", "*").check(b"any.example")


@pytest.mark.parametrize(
    "hosts", ["a*.example", "*example", "**", '""', "a..b", "*.", "münchen.example", "a.example:80"]
)
def test_lists_that_match_nothing_are_errors(hosts: str) -> None:
    with pytest.raises(
        ConfigError, match=r"ATTENDANT_ALLOWED_HOSTS: .* is not a host name or an address without a port"
    ):
        load_settings([], {"ATTENDANT_ALLOWED_HOSTS": hosts})


async def test_probe_of_http_1_0_needs_no_host(model: LoadedModel) -> None:
    """The browser of a victim of DNS rebinding always sends one."""
    async with open_harness(model) as harness:
        app = make_app(harness.lifecycle, harness.settings, harness.metrics)
        for request, status in (
            (b"GET /readyz HTTP/1.0\r\n\r\n", 200),
            (b"GET /readyz HTTP/1.0\r\nHost: evil.example\r\n\r\n", 403),
            (b"GET /readyz HTTP/1.0\r\nHost: \r\n\r\n", 403),
        ):
            async with serving(app) as (reader, writer):
                writer.write(request)
                assert (await reader.readline()).split()[1] == str(status).encode()


def test_any_name_is_allowed_beyond_loopback_without_a_list() -> None:
    HostCheck("0.0.0.0", "").check(b"any.example")


def test_list_applies_beyond_loopback() -> None:
    check = HostCheck("0.0.0.0", "attendant.example")
    check.check(b"attendant.example")
    for host in ("any.example", "localhost"):
        with pytest.raises(HostNotAllowed):
            check.check(host.encode())


@pytest.mark.parametrize("path", ["/", "/v1/model", "/livez", "/docs", "/v1/embeddings"])
def test_every_route_checks_the_host(rest: httpx.Client, path: str) -> None:
    response = rest.get(path, headers={"host": "evil.example"})
    assert response.status_code == 403
    assert "evil.example" in response.text


async def test_cross_origin_headers_are_absent_by_default(model: LoadedModel) -> None:
    async with open_harness(model) as harness:
        response = await harness.post("/v1/encode", {"inputs": GOLDEN}, origin=ORIGIN)
        assert response.status_code == 200
        assert "access-control-allow-origin" not in response.headers


async def test_allowed_origin_gets_cross_origin_headers(model: LoadedModel) -> None:
    """The openai package for JavaScript sends its version in headers, and reads `x-should-retry`."""
    requested = "authorization,content-type,x-stainless-lang,x-stainless-retry-count"
    async with open_harness(model, cors_origins=f"{ORIGIN}, https://other.example") as harness:
        preflight = await harness.client.options(
            "/v1/encode",
            headers={
                "origin": ORIGIN,
                "access-control-request-method": "POST",
                "access-control-request-headers": requested,
            },
        )
        assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, ORIGIN)
        assert preflight.headers["access-control-allow-headers"] == requested
        response = await harness.post("/v1/encode", {"inputs": GOLDEN}, origin=ORIGIN)
        assert response.headers["access-control-allow-origin"] == ORIGIN
        exposed = response.headers["access-control-expose-headers"]
        assert {"x-request-id", "x-should-retry"} <= set(exposed.split(", "))
        other = await harness.post("/v1/encode", {"inputs": GOLDEN}, origin="https://evil.example")
        assert "access-control-allow-origin" not in other.headers
