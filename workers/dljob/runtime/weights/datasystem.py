"""The client of openYuanrong's datasystem, for the transport `yr` and for the keys of the backend `yr`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol, cast

from dljob.errors import UnreachableError, UsageError

HOST, PORT = "DATASYSTEM_HOST", "DATASYSTEM_PORT"
"""Address of the datasystem's process on this node; its own clients read the same variables."""
ABSENT, PRESENT = "Key not found", "already exist"
"""Parts of the datasystem's errors, which have no class or code for these cases."""
CONNECT_MS = 10_000
REQUEST_MS = 60_000


class DatasystemClient(Protocol):
    """The methods of `yr.datasystem.KVClient` in use. Source: openyuanrong-datasystem 0.8.1."""

    def set(self, key: str, val: Any, *, ttl_second: int = 0) -> None:
        """Write a value, over an older one, for `ttl_second` s (0: for ever). Raises RuntimeError when it cannot."""
        ...

    def get(self, keys: list[str]) -> Sequence[bytes]:
        """Return copies of values. Raises RuntimeError with `Key not found` if one is missing."""
        ...

    def msettx(self, keys: list[str], vals: list[bytes], write_mode: Any, ttl_second: int, existence_opt: Any) -> None:
        """Write values of new keys, all or none. Raises RuntimeError with `already exist`."""
        ...

    def delete(self, keys: list[str]) -> Sequence[str]:
        """Delete those of these keys that exist; return the ones that could not be deleted."""
        ...

    def exist(self, keys: list[str]) -> Sequence[bool]:
        """Return for each key whether it exists."""
        ...


def connect(user: str) -> DatasystemClient:
    """Connect to the datasystem's process on this node, for `user`, with which a message may begin.

    Raises:
        UsageError: It is not installed, or no address is given.
        UnreachableError: Nothing answers there.
    """
    host, port = os.environ.get(HOST, ""), os.environ.get(PORT, "")
    if not host or not port.isdigit():
        raise UsageError(
            f"{user} needs {HOST} and {PORT}, which are {host or 'not set'} and {port or 'not set'}",
            hint="start `dscli start` on each node, and set both; for ranks in spec.env",
        )
    try:
        from yr.datasystem import KVClient

        client = KVClient(host, int(port), connect_timeout_ms=CONNECT_MS, req_timeout_ms=REQUEST_MS)
        client.init()
    except ImportError as error:
        raise UsageError(f"{user} is not installed: {error}", hint="pip install 'dljob[yr]'") from error
    except RuntimeError as error:
        raise UnreachableError(
            f"no datasystem of openYuanrong answers at {host}:{port}: {error}",
            hint=f"does it run on this node? `dscli start`; {HOST} and {PORT} say where",
        ) from error
    return cast("DatasystemClient", client)
