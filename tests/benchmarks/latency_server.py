"""A web server for `remote`: serves a folder with ranges, and waits before each answer.

Run as a process of its own, so that clients do not share a processor's lock with it. It
prints its port, and ends when its standard input does. ``/latency/20`` sets the milliseconds,
and ``/count`` returns how many requests there were since the last time.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class Server:
    """Answers GET and HEAD for files, and for folders with a page of links."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seconds = 0.0
        self._count = 0
        self._kept: dict[str, bytes] = {}

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection."""
        try:
            while True:
                text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = text.split("\r\n")
                method, target, _ = first.split(" ")
                fields = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in lines)
                }
                await self._answer(writer, method, target.partition("?")[0], fields)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _answer(
        self, writer: asyncio.StreamWriter, method: str, path: str, fields: dict[str, str]
    ) -> None:
        if path.startswith("/latency/"):
            self._seconds = float(path.rpartition("/")[2]) / 1000
            self._kept.clear()
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            return
        if path == "/count":
            text, self._count = str(self._count).encode(), 0
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))
            return
        self._count += 1
        await asyncio.sleep(self._seconds)
        data = self._read(path)
        if data is None:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        begin, end, status, more = 0, len(data), "200 OK", ""
        if found := _RANGE.fullmatch(fields.get("range", "")):
            start, stop = found.groups()
            begin = int(start) if start else max(len(data) - int(stop), 0)
            end = min(int(stop) + 1, len(data)) if start and stop else len(data)
            status = "206 Partial Content"
            more = f"Content-Range: bytes {begin}-{end - 1}/{len(data)}\r\n"
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Length: {end - begin}\r\nAccept-Ranges: bytes\r\n"
            f'ETag: "{len(data)}"\r\nContent-Type: text/html\r\n{more}\r\n'.encode()
        )
        if method != "HEAD":
            writer.write(memoryview(data)[begin:end])
        await writer.drain()

    def _read(self, path: str) -> bytes | None:
        data = self._kept.get(path)
        place = self._folder / path.strip("/")
        if data is None and place.is_dir():
            links = (f'<a href="{one.name}{"/" * one.is_dir()}">x</a>' for one in place.iterdir())
            data = "\n".join(links).encode()
        elif data is None and place.is_file():
            data = place.read_bytes()
        if data is not None:
            self._kept[path] = data
        return data


async def main(folder: Path) -> None:
    """Serve until the standard input ends."""
    server = await asyncio.start_server(Server(folder).talk, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()
    # Clients keep connections open.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
