"""The Host header, and cross-origin browser requests."""

import httpx
import pytest

from service.engine.model_loader import LoadedModel
from service.errors import HostNotAllowed
from service.rest.hosts import HostCheck, host_name, is_loopback
from tests.service.conftest import GOLDEN, open_harness

ORIGIN = "https://attendant.example"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", "localhost"),
        ("LOCALHOST:8080", "localhost"),
        ("127.0.0.1:8080", "127.0.0.1"),
        ("[::1]:8080", "::1"),
        ("[::1]", "::1"),
    ],
)
def test_host_name_has_no_port(host: str, expected: str) -> None:
    assert host_name(host) == expected
    assert is_loopback(expected)


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
    async with open_harness(model, cors_origins=f"{ORIGIN}, https://other.example") as harness:
        preflight = await harness.client.options(
            "/v1/encode",
            headers={
                "origin": ORIGIN,
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization,content-type",
            },
        )
        assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, ORIGIN)
        response = await harness.post("/v1/encode", {"inputs": GOLDEN}, origin=ORIGIN)
        assert response.headers["access-control-allow-origin"] == ORIGIN
        assert "x-request-id" in response.headers["access-control-expose-headers"]
        other = await harness.post("/v1/encode", {"inputs": GOLDEN}, origin="https://evil.example")
        assert "access-control-allow-origin" not in other.headers
