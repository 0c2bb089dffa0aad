"""The transport that the HTTP protocol gives to a response."""

import asyncio


class ResponseTransport:
    """The transport of one response, which writes its head together with the start of its body.

    uvicorn writes them one after the other. Each write is a system call, and the first one wakes the client in vain.
    """

    __slots__ = ("_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._transport.is_closing():
            return  # the client has disconnected
        if self._head is None:
            self._head = data
        elif self._head:
            self._transport.writelines((self._head, data))
            self._head = b""
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()
