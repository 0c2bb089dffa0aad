"""The list of clients, and the page generated from it."""

from pathlib import Path

import pytest

from tests.clients.registry import CLIENTS, REQUIREMENTS, Client, describe_clients

OTHERS = {"vector_databases", "pylate"}
"""Environments for docs/vector-databases.md and for an oracle; they contain no client of the server."""


def test_every_environment_has_one_client() -> None:
    environments = sorted(path.stem for path in REQUIREMENTS.iterdir() if path.stem not in OTHERS)
    assert sorted(client.environment for client in CLIENTS) == environments


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.package)
def test_client_has_a_test_and_a_row(client: Client) -> None:
    test = Path(__file__).with_name(client.test).read_text()
    assert f'"{client.package}"' in test
    assert f"| {client.version} | {client.api} |" in describe_clients()
