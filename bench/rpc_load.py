"""gRPC load from several processes with grpc.aio clients. Requests are serialized in advance."""

import asyncio
import itertools
import json
import time
from collections.abc import Sequence

import grpc
import numpy as np
import uvloop

from bench.load import Answered, Load, await_start, receive_job, run_senders
from bench.project import encode_message

METHOD = "/attendant.v1.EncoderService/Encode"
PROCESSES = 2
OPTIONS = [("grpc.max_receive_message_length", 1 << 28)]


def run_rpc(load: Load, seconds: float, processes: int = PROCESSES) -> Answered:
    """Generate load for `seconds` seconds. The URL is a gRPC address, and `connections` is the total number of calls in
    flight.
    """
    calls = load.connections // processes
    jobs: list[dict[str, object]] = [
        {"address": load.url, "calls": calls, "bodies": load.bodies, "seconds": seconds, "skip": number / processes}
        for number in range(processes)
    ]
    results = run_senders("rpc_load", jobs)
    times = np.concatenate([result["times_ms"] for result in results])
    return Answered(
        requests=len(times),
        seconds=max(result["seconds"] for result in results),
        p50_ms=float(np.quantile(times, 0.5)),
        p99_ms=float(np.quantile(times, 0.99)),
        failed=sum(result["failed"] for result in results),
        max_ms=float(times.max()),
    )


async def send(address: str, requests: Sequence[bytes], calls: int, seconds: float) -> dict[str, object]:
    """Keep `calls` in flight for `seconds`."""
    turn = itertools.cycle(requests)
    times: list[float] = []
    failed = 0
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        await asyncio.wait_for(channel.channel_ready(), 10)
        encode = channel.unary_unary(METHOD)
        await asyncio.to_thread(await_start)
        started = time.perf_counter()

        async def client() -> None:
            nonlocal failed
            while (sent_at := time.perf_counter()) - started < seconds:
                try:
                    await encode(next(turn), timeout=30)
                except grpc.aio.AioRpcError:
                    failed += 1
                else:
                    times.append((time.perf_counter() - sent_at) * 1000)

        await asyncio.gather(*(client() for _ in range(calls)))
        return {"times_ms": times, "failed": failed, "seconds": time.perf_counter() - started}


def main() -> None:
    job = receive_job()
    with open(job["bodies"]) as file:
        requests = [encode_message(json.loads(line)) for line in file]
    at = int(job["skip"] * len(requests))
    rotated = requests[at:] + requests[:at]
    print(json.dumps(uvloop.run(send(job["address"], rotated, job["calls"], job["seconds"]))))


if __name__ == "__main__":
    main()
