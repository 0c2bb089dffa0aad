"""The warning of a server that accepts requests from the network without API keys."""

from pathlib import Path

import pytest

from tests.conftest import start_server


@pytest.mark.parametrize(("host", "with_keys", "expected"), [("0.0.0.0", False, True), ("0.0.0.0", True, False)])
def test_server_without_keys_warns_beyond_loopback(tmp_path: Path, host: str, with_keys: bool, expected: bool) -> None:
    options: dict[str, object] = {"host": host}
    if with_keys:
        options["api_keys_file"] = tmp_path / "keys"
        (tmp_path / "keys").write_text("secret\n")
    server = start_server(**options)
    server.process.terminate()
    _, log = server.process.communicate(timeout=60)
    assert ("API keys disabled on a non-loopback address" in log) is expected


def test_server_on_loopback_does_not_warn() -> None:
    server = start_server()
    server.process.terminate()
    _, log = server.process.communicate(timeout=60)
    assert "API keys disabled" not in log
