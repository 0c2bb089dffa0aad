"""The link between the supervisor and a worker: passes messages and sockets.

The link is a pair of Unix sockets that preserve message boundaries. A message is JSON, or one byte with the descriptor
of an accepted connection. Either end closes when its process exits, even if it is killed.
"""

import asyncio
import ctypes
import itertools
import json
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from model.artifact.console import EX_SOFTWARE
from service.config import ConfigError
from service.shared_values import Aggregate, Slot

REST, ADMIN = b"r", b"a"
"""Messages that pass a connection: from the REST port, or one that the supervisor relays from the admin port."""
MAX_MESSAGE_BYTES = 128 * 1024
MAX_MODELS_BYTES = MAX_MESSAGE_BYTES - 8192
"""Besides the models, the first message to a worker contains its options."""
MAX_CHANGE_BYTES = MAX_MESSAGE_BYTES // 2
"""The models that result from a change also have a digest each."""
MAX_DESCRIPTORS = 128
"""The first message has one for quotas and one for each of up to 64 workers; the others have one or none."""
MESSAGES_PER_WAKEUP = 16
"""Maximum number of messages that a worker reads before it serves its connections again."""

PR_SET_PDEATHSIG = 1
PARENT = "WORKER_PARENT"
"""Environment variable with the process ID of the supervisor."""

Message = dict[str, Any]


class Channel:
    """One end of the pair."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._waiting: deque[bytes] = deque()
        end.setblocking(False)

    @classmethod
    def pair(cls) -> "tuple[Channel, socket.socket]":
        """Return the end of this process, and the one to pass to a worker."""
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(own), other

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> bool:
        """Send a message, or while the buffer is full, send it later; return False if the process has exited."""
        data = json.dumps(message).encode()
        if not self._waiting:
            try:
                socket.send_fds(self.end, [data], descriptors)
            except BlockingIOError:
                assert not descriptors, "only the first message has descriptors"
                asyncio.get_running_loop().add_writer(self.end, self._send_waiting)
            except OSError:
                return False
            else:
                return True
        self._waiting.append(data)
        return True

    def send_connection(self, kind: bytes, connection: socket.socket) -> bool:
        """Pass a connection; return whether that succeeded. The caller must close its descriptor."""
        if self._waiting:
            return False
        try:
            socket.send_fds(self.end, [kind], (connection.fileno(),))
        except OSError:  # the buffer is full, or the process has exited
            return False
        return True

    def _send_waiting(self) -> None:
        while self._waiting:
            try:
                self.end.send(self._waiting[0])
            except BlockingIOError:
                return
            except OSError:  # the process has exited
                self._waiting.clear()
                break
            self._waiting.popleft()
        asyncio.get_running_loop().remove_writer(self.end)

    def receive(self) -> tuple[bytes, list[int]] | None:
        """Return the next message and its descriptors; None if none has arrived. Raises EOFError if closed."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.end, MAX_MESSAGE_BYTES, MAX_DESCRIPTORS)
        except BlockingIOError:
            return None
        except OSError:
            raise EOFError from None
        if not data:
            raise EOFError
        return data, descriptors

    def close(self) -> None:
        if self._waiting:
            asyncio.get_running_loop().remove_writer(self.end)
        self.end.close()


@dataclass(frozen=True)
class Start:
    """The first message to a worker: its options, with its share of the limits, and its index among the workers.

    It carries the descriptors of the quota memory and of all workers' metrics memory. Ports in `settings` belong to the
    supervisor. `models`: the models in use, if any worker has loaded them. `is_measured`: whether the supervisor may
    replace this process once it is ready. If not, the message "serve" follows.
    """

    number: int
    workers: int
    settings: Message
    models: Message | None = None
    is_measured: bool = False


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it, the parent's main thread, ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ.pop(PARENT, "0")):  # the parent had already exited
        os._exit(EX_SOFTWARE)


class WorkerLink:
    """The worker's end. Attach it to the event loop once the worker has created its servers."""

    def __init__(self, channel: Channel, start: Start, slot: Slot, totals: Aggregate, quotas: int) -> None:
        """`slot`: metrics memory. `totals`: the sums over all workers. `quotas`: descriptor of the quota memory."""
        self.start = start
        self.slot = slot
        self.totals = totals
        self.quotas = quotas
        self._channel = channel
        self._numbers = itertools.count()
        self._requests: dict[int, asyncio.Future[str]] = {}

    @classmethod
    def open(cls, descriptor: int) -> "WorkerLink":
        """Wait for the first message. Raises EOFError if the supervisor has exited."""
        end = socket.socket(fileno=descriptor)
        data, descriptors, _, _ = socket.recv_fds(end, MAX_MESSAGE_BYTES, MAX_DESCRIPTORS)
        if not data:
            raise EOFError
        quotas, *slots = descriptors
        start = Start(**json.loads(data))
        slot, totals = Slot(slots[start.number]), Aggregate([Slot(descriptor) for descriptor in slots])
        return cls(Channel(end), start, slot, totals, quotas)

    def attach(
        self,
        serve_rest: Callable[[socket.socket], object],
        serve_admin: Callable[[socket.socket], object],
        on_message: Callable[[Message], None],
    ) -> None:
        """Tell the supervisor to start passing connections, and serve them."""
        serve = {REST: serve_rest, ADMIN: serve_admin}

        def receive() -> None:
            for _ in range(MESSAGES_PER_WAKEUP):
                try:
                    if (received := self._channel.receive()) is None:
                        return
                except EOFError:  # the supervisor has exited, and this process is about to (PR_SET_PDEATHSIG)
                    asyncio.get_running_loop().remove_reader(self._channel.end)
                    return
                data, descriptors = received
                if data in serve:
                    for descriptor in descriptors:
                        serve[data](socket.socket(fileno=descriptor))
                    continue
                message = json.loads(data)
                if message["event"] == "changed":
                    self._requests.pop(message["request"]).set_result(message["error"])
                else:
                    on_message(message)

        asyncio.get_running_loop().add_reader(self._channel.end, receive)
        self.tell("listening")

    def tell(self, event: str, **values: Any) -> None:
        """Send a message to the supervisor."""
        self._channel.send({"event": event, **values})

    @staticmethod
    def check_size(models: Message, limit: int = MAX_MODELS_BYTES) -> None:
        """Raise `ConfigError` if the description of the models, or of a change, is too long for a message."""
        size = len(json.dumps(models))
        if size > limit:
            raise ConfigError(
                f"ATTENDANT_MODELS_FILE: too large for several workers ({size} bytes, limit {limit}). "
                "Serve fewer models."
            )

    async def request_change(self, change: Message) -> None:
        """Change the models of all workers. Raises `ConfigError` if one of them cannot."""
        self.check_size(change, MAX_CHANGE_BYTES)
        number = next(self._numbers)
        self._requests[number] = done = asyncio.get_running_loop().create_future()
        self.tell("change", request=number, change=change)
        if error := await done:
            raise ConfigError(error)
