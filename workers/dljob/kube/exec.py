"""A command in a container, by the pod's `exec` subresource: what `kubectl exec -i` uses."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from typing import cast

import aiohttp

from dljob.kube.api import Json, Kube
from dljob.kube.errors import ApiError
from dljob.kube.resources import PODS

_STDIN, _STDOUT, _STDERR, _ERROR = 0, 1, 2, 3
"""The channels of the protocol: the first byte of each message."""
FIRST_S = 30.0
"""Seconds for the first line of a command: an image may have a slow disk."""


class PodCommand:
    """A command that runs in a container. Its stdin stays open until `end`, or until the connection breaks."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, whose: str) -> None:
        self._socket = socket
        self._whose = whose
        self._out = b""
        self._errors = b""
        self.code: int | None = None
        """Its exit code; None while it runs, or when the connection broke before its end."""

    @classmethod
    async def start(
        cls, kube: Kube, pod: str, container: str, command: Sequence[str], namespace: str | None = None
    ) -> PodCommand:
        """Start a command. Raises ApiError, with status 403 where the user may not create `pods/exec`."""
        path = PODS.path(namespace or kube.namespace, pod, "exec")
        query = [("container", container), *(("command", word) for word in command)]
        flags = [(name, "true") for name in ("stdin", "stdout", "stderr")]
        return cls(await kube.transport.socket(path, [*query, *flags]), f"{pod}/{container}")

    async def first(self) -> Json:
        """Return the first line of its output, which is JSON.

        Raises:
            ApiError: it ended, or said nothing, without one; with its stderr.
        """
        try:
            async with asyncio.timeout(FIRST_S):
                while b"\n" not in self._out and await self._take():
                    pass
        except TimeoutError:
            raise ApiError(0, "Silent", f"the command in {self._whose} said nothing within {FIRST_S:g} s") from None
        line, newline, _ = self._out.partition(b"\n")
        if not newline:
            error_text = self._errors.decode(errors="replace").strip()[-500:]
            raise ApiError(0, "Failed", f"the command in {self._whose} failed: {error_text or 'it said nothing'}")
        return cast("Json", json.loads(line))

    async def end(self) -> None:
        """Tell it to end, by a line on its stdin, and wait for that; a connection that is broken has told it."""
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):  # the kubelet has closed its stdin then
            if self.code is None:
                await self._socket.send_bytes(bytes([_STDIN]) + b"\n")
                while await self._take():
                    pass
        await self._socket.close()

    async def _take(self) -> bool:
        """Take the next message; return whether there was one before the end."""
        message = await self._socket.receive()
        if message.type not in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
            return False
        data = message.data.encode() if isinstance(message.data, str) else message.data
        channel, body = (data[0], data[1:]) if data else (_STDOUT, b"")
        if channel == _STDOUT:
            self._out += body
        elif channel == _STDERR:
            self._errors += body
        elif channel == _ERROR:
            self.code, message_text = code_of(body)
            self._errors += message_text.encode()
            return False
        return True


def code_of(status: bytes) -> tuple[int, str]:
    """Return the exit code in the Status that ends a command, and the message of one that could not run."""
    parsed = cast("Json", json.loads(status))
    if parsed.get("status") == "Success":
        return 0, ""
    details: Json = parsed.get("details") or {}
    causes: list[Json] = details.get("causes") or []
    for cause in causes:
        if cause.get("reason") == "ExitCode":
            return int(cause["message"]), ""
    return -1, str(parsed.get("message") or "")
