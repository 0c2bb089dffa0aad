"""Debian's Firefox over WebDriver BiDi (W3C), without geckodriver or a WebSocket package."""

import itertools
import json
import os
import re
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

FIREFOX = Path("/usr/bin/firefox-esr")
TIMEOUT_S = 60
LISTENING = re.compile(r"WebDriver BiDi listening on ws://([\d.]+):(\d+)")
UPGRADE = (
    "GET /session HTTP/1.1\r\nHost: {}:{}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class WebSocket:
    """A WebSocket client (RFC 6455) for text messages."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), TIMEOUT_S)
        self.stream = self.socket.makefile("rb")
        self.socket.sendall(UPGRADE.format(host, port).encode())
        while self.stream.readline().strip():
            pass

    def send(self, message: str) -> None:
        """Send one frame. The mask is constant, because Firefox accepts any mask except zero."""
        payload = bytes(byte ^ 1 for byte in message.encode())
        size = len(payload)
        code, width = (size, 0) if size < 126 else (126, 2) if size < 2**16 else (127, 8)
        length = size.to_bytes(width, "big") if width else b""
        self.socket.sendall(bytes([0x81, 0x80 | code]) + length + b"\1\1\1\1" + payload)

    def receive(self) -> str:
        payload, final = b"", False
        while not final:
            first, size = self.stream.read(2)
            final = bool(first & 0x80)
            if size >= 126:
                size = int.from_bytes(self.stream.read(2 if size == 126 else 8), "big")
            payload += self.stream.read(size)
        return payload.decode()


def wait_until_listening(log: Path) -> tuple[str, str]:
    """Return the host and port that Firefox writes to its log."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if match := LISTENING.search(log.read_text()):
            return match[1], match[2]
        time.sleep(0.05)
    raise TimeoutError(f"Firefox does not listen after {TIMEOUT_S} s: {log.read_text()[-2000:]}")


class Firefox:
    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self._start()

    def _start(self) -> None:
        command = [
            str(FIREFOX), "--headless", "--no-remote", "--profile", str(self._profile), "--remote-debugging-port", "0",
        ]  # fmt: skip
        environment = os.environ | {"HOME": str(self._profile)}
        log = self._profile / "stderr.log"
        with log.open("w") as stderr:  # not a pipe: Firefox would block once it is full
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, env=environment)
        host, port = wait_until_listening(log)
        self.hangs = False
        self.ids = itertools.count()
        self.socket = WebSocket(host, int(port))
        self.call("session.new", capabilities={})
        self.context = self.call("browsingContext.getTree")["contexts"][0]["context"]

    def restart(self) -> None:
        """Replace a process that no longer responds."""
        self.process.kill()
        self.process.wait(TIMEOUT_S)
        self._disconnect()
        self._start()

    def _disconnect(self) -> None:
        self.socket.stream.close()
        self.socket.socket.close()

    def call(self, method: str, **parameters: Any) -> Any:
        number = next(self.ids)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        try:
            while (message := json.loads(self.socket.receive())).get("id") != number:
                pass
        except TimeoutError:
            self.hangs = True  # the stream cannot be read after a timeout
            raise
        assert message["type"] == "success", message
        return message["result"]

    def open(self, url: str) -> None:
        self.call("browsingContext.navigate", context=self.context, url=url, wait="complete")

    def run(self, expression: str) -> Any:
        source = f"(async () => JSON.stringify(await ({expression})))()"
        result = self.call("script.evaluate", expression=source, target={"context": self.context}, awaitPromise=True)
        assert result["type"] == "success", result
        return json.loads(result["result"].get("value", "null"))

    def wait_for(self, condition: str) -> None:
        look = f"const look = () => (({condition}) ? done(true) : setTimeout(look, 20)); look();"
        assert self.run(f"new Promise((done) => {{ {look} }})") is True

    def press(self, keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        keyboard = {"type": "key", "id": "keyboard", "actions": actions}
        self.call("input.performActions", context=self.context, actions=[keyboard])

    def close(self) -> None:
        self._disconnect()
        self.process.terminate()
        self.process.wait(TIMEOUT_S)
