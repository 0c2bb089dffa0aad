"""The four kinds of clients behind one interface."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from attendant_client import AsyncClient, Client, RetryPolicy

from tests.serving import ServiceThread

NO_RETRIES = RetryPolicy(max_attempts=1)

Protocol = Literal["http", "grpc"]


class SyncCaller:
    """Gives `AsyncClient` the interface of `Client`, so that the tests run with both."""

    def __init__(self, url: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = self._loop.run_until_complete(self._open(url, options))

    async def _open(self, url: str, options: dict[str, Any]) -> AsyncClient:
        return AsyncClient(url, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Awaitable[Any]] = getattr(self._client, name)

        def call(*arguments: Any, **options: Any) -> Any:
            return self._loop.run_until_complete(method(*arguments, **options))

        return call

    def __enter__(self) -> "SyncCaller":
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.close()


KINDS: dict[str, tuple[Any, Protocol]] = {
    "http": (Client, "http"),
    "grpc": (Client, "grpc"),
    "async http": (SyncCaller, "http"),
    "async grpc": (SyncCaller, "grpc"),
}


def service_url(service: ServiceThread, protocol: Protocol) -> str:
    return service.rest if protocol == "http" else f"grpc://{service.grpc}"
