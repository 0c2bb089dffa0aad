"""The warning when a server accepts network requests without API keys."""

from pathlib import Path

import httpx
import pytest

from tests.conftest import start_server, stop_server


@pytest.mark.parametrize(("host", "with_keys", "expected"), [("0.0.0.0", False, True), ("0.0.0.0", True, False)])
def test_server_without_keys_warns_beyond_loopback(
    tiny_artifact: Path, tmp_path: Path, host: str, *, with_keys: bool, expected: bool
) -> None:
    options: dict[str, object] = {"host": host, "model_dir": tiny_artifact}
    if with_keys:
        options["api_keys_file"] = tmp_path / "keys"
        (tmp_path / "keys").write_text("secret\n")
    server = start_server(**options)
    server.process.terminate()
    _, log = server.process.communicate(timeout=60)
    assert ("API keys disabled on a non-loopback address" in log) is expected


def test_allowed_hosts_do_not_apply_to_the_admin_port(tiny_artifact: Path) -> None:
    """Probes address a pod by IP."""
    server = start_server(
        model_dir=tiny_artifact, host="0.0.0.0", admin_host="0.0.0.0", allowed_hosts="api.example.org"
    )
    try:
        headers = {"host": "10.1.2.3:8082"}
        assert httpx.get(server.admin.replace("0.0.0.0", "127.0.0.1") + "/readyz", headers=headers).status_code == 200
        assert httpx.get(server.rest.replace("0.0.0.0", "127.0.0.1") + "/v1/model", headers=headers).status_code == 403
    finally:
        stop_server(server)
