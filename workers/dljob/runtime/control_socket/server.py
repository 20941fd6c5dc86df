"""PrimeMaster's end of the control socket."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dljob.errors import UnreachableError, UsageError
from dljob.linux.socket_peer import peer
from dljob.runtime.control_socket import location
from dljob.runtime.control_socket.messages import REQUEST_BYTES, answer, parse, refusal

CLIENTS = 16
"""Most clients at once; further ones are refused."""
SILENT_S = 10.0
"""Seconds without a request or a read after which a client is dropped."""
Calls = Mapping[str, Callable[..., Awaitable[Any]]]
log = logging.getLogger(__package__)


class ControlSocket:
    """A unix socket of mode 0600 that answers its owner and root."""

    def __init__(self, folder: Path, uid: str, calls: Calls, *, silent_s: float = SILENT_S) -> None:
        self._folder = folder
        self._uid = uid
        self._calls = calls
        self._silent_s = silent_s
        self._clients = 0
        self._closed = False
        self._owners = {0, os.geteuid()}
        self._server: asyncio.Server | None = None
        self._inode: tuple[int, int] | None = None
        self.path: Path | None = None

    async def open(self) -> None:
        """Listen in the job's folder, or in a private one, and write the path into `job.json`.

        A socket at that path is replaced, be it one of an earlier PrimeMaster or of another process. A job without
        `job.json` is not found by commands of this machine, and gets no socket. A job whose socket cannot be made runs
        without one, and `job.json` says why.
        """
        if self._closed or not (self._folder / location.ENTRY).is_file():
            return
        try:
            line = self._bind()
        except UnreachableError as error:
            log.warning("commands on this machine cannot reach job %s: %s", self._uid, error.message)
            self._note("", error.message)
            return
        self._server = await asyncio.start_unix_server(self._serve, sock=line, limit=REQUEST_BYTES)
        self._note(str(self.path))

    def _bind(self) -> socket.socket:
        """Bind a socket under a temporary name and rename it, so that it has its mode before anyone can find it."""
        refused = ""
        places = location.candidates(self._folder, self._uid)
        while True:
            try:
                path = next(places)
            except UnreachableError as error:
                raise UnreachableError(f"{error.message}{refused}", hint=error.hint) from None
            line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            part = path.with_name(f"{path.name}.{os.urandom(4).hex()}")
            try:
                line.bind(str(part))
                # connect() needs the permission to write: until the rename nobody knows the name.
                part.chmod(0o600)
                part.replace(path)
            except OSError as error:  # a file system without sockets, or without free inodes
                refused = f"; {path.parent}: {error.strerror}"
                line.close()
                location.remove(part)
                continue
            # Remembered, so that `close` removes this very socket, and never that of a later PrimeMaster.
            status = path.lstat()
            self.path, self._inode = path, (status.st_dev, status.st_ino)
            return line

    def _note(self, path: str, trouble: str = "") -> None:
        try:
            location.note(self._folder, path, trouble)
        except (OSError, ValueError) as error:
            log.warning("job.json of %s does not name the control socket: %s", self._uid, error)

    def close(self) -> None:
        """Accept no more clients, and remove the socket unless a later PrimeMaster has put its own there."""
        # `open` may come later, and must not put a socket there any more.
        self._closed = True
        if self._server is not None:
            self._server.close()
        if self.path is not None:
            with suppress(OSError):  # the folder is gone, and the socket with it
                status = self.path.lstat()
                if (status.st_dev, status.st_ino) == self._inode:
                    location.remove(self.path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            await self._client(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client left, was silent, or the loop ends: no answer would reach it
        finally:
            self._clients -= 1
            # abort, not close: a client that does not read would keep the connection open.
            writer.transport.abort()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uid = peer(writer.get_extra_info("socket"))[1]
        if uid not in self._owners:
            # Refused with words: a closed connection would look like a PrimeMaster that is away.
            await self._send(writer, refusal(UsageError(f"user {uid} may not control a job of user {os.geteuid()}")))
            return
        if self._clients > CLIENTS:
            await self._send(writer, refusal(UnreachableError(f"{CLIENTS} commands are connected to this job already")))
            return
        while True:
            try:
                async with asyncio.timeout(self._silent_s):
                    line = await reader.readuntil(b"\n")
            except asyncio.LimitOverrunError:
                await self._send(writer, refusal(UsageError(f"a request is at most {REQUEST_BYTES} bytes long")))
                return
            await self._send(writer, await self._answer(line))

    async def _send(self, writer: asyncio.StreamWriter, line: bytes) -> None:
        writer.write(line)
        async with asyncio.timeout(self._silent_s):
            await writer.drain()

    async def _answer(self, line: bytes) -> bytes:
        try:
            call, args = parse(line, self._uid)
            value = await self._calls[call](*args)
        except Exception as error:  # noqa: BLE001 - sent to the client; one bad request must not end PrimeMaster
            return refusal(error)
        return await asyncio.to_thread(answer, value)  # encoding the status of 10,000 ranks takes 140 ms
