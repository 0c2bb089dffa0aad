"""A client in a separate process that sends large requests back to back."""

import asyncio
import itertools
import json
import time
from dataclasses import dataclass

import httpx

from bench.load import GZIP, await_start, receive_job

TIMEOUT_S = 120.0
DEADLINE = {"x-request-timeout-ms": "60000"}


@dataclass(frozen=True)
class BulkFigure:
    """Successful and failed requests in `seconds`, which end with the last response."""

    answered: int
    failed: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.answered / self.seconds


async def send(url: str, bodies: list[bytes], seconds: float) -> BulkFigure:
    """Send requests for `seconds`, then wait for the last response."""
    answered = failed = 0
    headers = {"content-type": "application/json", **GZIP, **DEADLINE}
    async with httpx.AsyncClient(timeout=TIMEOUT_S, headers=headers) as client:
        await asyncio.to_thread(await_start)
        started = time.perf_counter()
        for body in itertools.cycle(bodies):
            try:
                async with client.stream("POST", url, content=body) as response:
                    async for _ in response.aiter_raw():
                        pass
                answered += response.is_success
                failed += not response.is_success
            except httpx.HTTPError:
                failed += 1
            if (spent := time.perf_counter() - started) >= seconds:
                return BulkFigure(answered, failed, spent)
    raise AssertionError


def main() -> None:
    job = receive_job()
    with open(job["bodies"], "rb") as file:
        bodies = [line.strip() for line in file]
    figure = asyncio.run(send(job["url"], bodies, job["seconds"]))
    print(json.dumps({"answered": figure.answered, "failed": figure.failed, "seconds": figure.seconds}))


if __name__ == "__main__":
    main()
