"""Load over gRPC: several processes of grpc.aio callers, each call's bytes made beforehand and its answer left unread.

Run by `run_rpc`; the other half of this file is what its processes do.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Sequence

import grpc
import numpy as np
import uvloop

from service.pb import encoder_pb2 as pb
from tests.bench.load import Answered, Load, await_start, receive_job, run_senders

METHOD = "/attendant.v1.EncoderService/Encode"
PROCESSES = 2
OPTIONS = [("grpc.max_receive_message_length", 1 << 28)]


def run_rpc(load: Load, seconds: float, processes: int = PROCESSES) -> Answered:
    """`load.url` is the address of the gRPC door; its connections are calls in flight, shared by the processes."""
    each = load.connections // processes
    jobs: list[dict[str, object]] = [
        {"address": load.url, "calls": each, "bodies": load.bodies, "seconds": seconds, "skip": number / processes}
        for number in range(processes)
    ]
    found = run_senders("rpc_load", jobs)
    times = np.concatenate([one["times_ms"] for one in found])
    return Answered(
        requests=len(times),
        seconds=max(one["seconds"] for one in found),
        p50_ms=float(np.quantile(times, 0.5)),
        p99_ms=float(np.quantile(times, 0.99)),
        failed=sum(one["failed"] for one in found),
    )


def request_bytes(line: str) -> bytes:
    """The message that says what a line of JSON says."""
    body = json.loads(line)
    outputs = [f"OUTPUT_{name.upper()}" for name in body.get("outputs", ())]
    message = pb.EncodeRequest(inputs=[pb.Input(text=text) for text in body["inputs"]], outputs=outputs)
    return message.SerializeToString()


async def send(address: str, requests: Sequence[bytes], calls: int, seconds: float) -> dict[str, object]:
    """`calls` in flight until the time is over."""
    turn = itertools.cycle(requests)
    times: list[float] = []
    failed = 0
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        await asyncio.wait_for(channel.channel_ready(), 10)
        encode = channel.unary_unary(METHOD)
        await asyncio.to_thread(await_start)
        started = time.perf_counter()

        async def caller() -> None:
            nonlocal failed
            while (begun := time.perf_counter()) - started < seconds:
                try:
                    await encode(next(turn), timeout=30)
                except grpc.aio.AioRpcError:
                    failed += 1
                else:
                    times.append((time.perf_counter() - begun) * 1000)

        await asyncio.gather(*(caller() for _ in range(calls)))
        return {"times_ms": times, "failed": failed, "seconds": time.perf_counter() - started}


def main() -> None:
    job = receive_job()
    with open(job["bodies"]) as file:
        requests = [request_bytes(line) for line in file]
    at = int(job["skip"] * len(requests))
    turned = requests[at:] + requests[:at]
    print(json.dumps(uvloop.run(send(job["address"], turned, job["calls"], job["seconds"]))))


if __name__ == "__main__":
    main()
