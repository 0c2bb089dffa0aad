"""Steady traffic for the dashboard: every REST operation at a fixed rate over one connection.

It needs only the standard library, so that it runs in the server image. It exits with 1 if a request failed.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import logging
import sys
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

SENTENCES = (
    "She sat on the bank of the river.",
    "He cashed a check at the bank.",
    "The bank raised its interest rates.",
    "Money bank grows.",
)
Call = tuple[str, str, dict[str, Any] | None]
REPORT_S = 10

log = logging.getLogger("load")


def calls(model: str) -> Iterator[Call]:
    """Yield requests forever. Most are embeddings; every tenth one uses the explain lane."""
    for number in itertools.count():
        texts = [SENTENCES[index % len(SENTENCES)] for index in range(number, number + 1 + number % 8)]
        match number % 10:
            case 0:
                yield "POST", "/v1/attend", {"inputs": texts[0], "unit": "word", "decimals": 3}
            case 1:
                yield "POST", "/v1/similarity", {"queries": texts[0], "documents": list(SENTENCES)}
            case 2:
                yield "GET", "/v1/model", None
            case 3 | 4 | 5:
                yield "POST", "/v1/embeddings", {"model": model, "input": texts}
            case _:
                yield "POST", "/v1/encode", {"inputs": texts, "outputs": ["pooled", "words"]}


def connect(url: str) -> http.client.HTTPConnection:
    """Return a connection, which reconnects after an error."""
    parts = urllib.parse.urlsplit(url)
    # Certificates are verified. The variable SSL_CERT_FILE names a private CA.
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.netloc, timeout=30)


def send(connection: http.client.HTTPConnection, method: str, path: str, body: dict[str, Any] | None) -> int:
    """Return the status, or 0 if there was no response."""
    data = None if body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, data, {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        return 0
    return response.status


def run(url: str, rate: float, seconds: float) -> int:
    """Send `rate` requests per second for `seconds` (0: forever); return the number of failed requests.

    A slow server lowers the rate, because each request waits for the previous response.
    """
    started = reported = time.monotonic()
    sent = failed = 0
    with contextlib.closing(connect(url)) as connection:
        connection.request("GET", "/v1/model")
        model = json.loads(connection.getresponse().read())["name"]  # required by the OpenAI API
        for method, path, body in calls(model):
            now = time.monotonic()
            if seconds and now - started >= seconds:
                break
            if now - reported >= REPORT_S:
                log.info("sent=%d failed=%d", sent, failed)
                reported = now
            sent += 1
            failed += send(connection, method, path, body) != http.HTTPStatus.OK
            # Don't catch up after a late request: the rate is an upper limit.
            time.sleep(max(0.0, now + 1 / rate - time.monotonic()))
    log.info("sent=%d failed=%d", sent, failed)
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="REST address of the server.")
    parser.add_argument("--rate", type=float, default=20.0, help="Maximum number of requests per second.")
    parser.add_argument("--seconds", type=float, default=0.0, help="Duration in seconds. 0 runs without end.")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    return 1 if run(options.url, options.rate, options.seconds) else 0


if __name__ == "__main__":
    sys.exit(main())
