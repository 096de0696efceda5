"""An S3 server as bad ones are: it ignores the conditions of writes, or loses their replies."""

import asyncio
import contextlib

from object_store_fixture import ObjectStoreServer


class Gateway:
    """A gateway before the object store that may ignore If-None-Match, as some servers do, or lose replies to PUT."""

    def __init__(
        self, store: ObjectStoreServer, *, ignores_conditions_of: str = "\0", loses_replies: bool = False
    ) -> None:
        host, port = store.endpoint.removeprefix("http://").split(":")
        self._target = (host, int(port))
        self._store = store
        self._ignores_conditions_of, self._loses_replies = ignores_conditions_of, loses_replies
        self.endpoint = ""

    async def __aenter__(self) -> "Gateway":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            first, *headers = (await reader.readuntil(b"\r\n\r\n")).rstrip().split(b"\r\n")
            fields = {name.lower(): value.strip() for name, value in (line.split(b":", 1) for line in headers)}
            if b"expect" in fields:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await reader.readexactly(int(fields.get(b"content-length", 0)))
            method, path, _ = first.decode().split(" ")
            if method == "PUT" and path.endswith(self._ignores_conditions_of):
                reply = await self._put(path, body)
            else:
                reply = await self._forward(first, headers, body)
            if not (method == "PUT" and self._loses_replies):
                writer.write(reply)
                await writer.drain()
        writer.close()

    async def _put(self, path: str, body: bytes) -> bytes:
        bucket, key = path.removeprefix("/").split("/", 1)
        await asyncio.to_thread(self._store.client().put_object, Bucket=bucket, Key=key, Body=body)
        return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    async def _forward(self, first: bytes, headers: list[bytes], body: bytes) -> bytes:
        kept = [line for line in headers if not line.lower().startswith((b"expect:", b"connection:"))]
        reader, writer = await asyncio.open_connection(*self._target)
        writer.write(b"\r\n".join((first, *kept, b"Connection: close", b"", b"")) + body)
        await writer.drain()
        reply = await reader.read()
        writer.close()
        return reply
