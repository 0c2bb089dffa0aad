"""Debian's Firefox over Marionette, the protocol below geckodriver: JSON messages over TCP, each after its length."""

import itertools
import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

FIREFOX = Path("/usr/bin/firefox-esr")
TIMEOUT_S = 60


class Firefox:
    def __init__(self, profile: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        (profile / "user.js").write_text(f'user_pref("marionette.port", {port});\n')
        command = [str(FIREFOX), "--headless", "--no-remote", "--profile", str(profile), "--marionette"]
        environment = os.environ | {"HOME": str(profile)}
        with (profile / "stderr.log").open("w") as stderr:  # not a pipe: Firefox would block once it is full
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, env=environment)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline, (profile / "stderr.log").read_text()[-2000:]
                time.sleep(0.05)
        self.stream, self.ids = self.socket.makefile("rb"), itertools.count()
        self.receive()  # the greeting
        self.call("WebDriver:NewSession", timeouts={"script": 1000 * TIMEOUT_S})

    def receive(self) -> Any:
        size = b""
        while (digit := self.stream.read(1)) != b":":
            size += digit
        return json.loads(self.stream.read(int(size)))

    def call(self, name: str, **parameters: Any) -> Any:
        message = json.dumps([0, next(self.ids), name, parameters]).encode()
        self.socket.sendall(b"%d:%b" % (len(message), message))
        _, _, error, result = self.receive()
        assert error is None, error
        return result

    def open(self, url: str) -> None:
        self.call("WebDriver:Navigate", url=url)

    def run(self, expression: str) -> Any:
        """Return the JSON value of an expression, or of its promise, in the page."""
        script = """const [expression, done] = arguments;
            (async () => JSON.stringify(await eval(expression)))().then(done, (error) => done({ error }));"""
        result = self.call("WebDriver:ExecuteAsyncScript", script=script, args=[expression], sandbox=None)["value"]
        assert not isinstance(result, dict), result
        return None if result is None else json.loads(result)

    def wait_for(self, condition: str) -> None:
        look = f"const look = () => (({condition}) ? done(true) : setTimeout(look, 20)); look();"
        assert self.run(f"new Promise((done) => {{ {look} }})") is True

    def perform(self, source: dict[str, Any]) -> None:
        self.call("WebDriver:PerformActions", actions=[source])

    def press(self, keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.perform({"type": "key", "id": "keyboard", "actions": actions})

    def close(self) -> None:
        self.stream.close()
        self.socket.close()
        self.process.terminate()
        self.process.wait(TIMEOUT_S)
