"""Dashboard of a Ray that a job of this machine runs on, asked with the token that the job's entry knows."""

from __future__ import annotations

import os
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

from dljob.api.registry import RegistryEntry
from dljob.errors import UnreachableError, UsageError
from dljob.linux.listeners import users_of

PORT = 8265
"""Ray's default port of its dashboard."""
LOOPBACK = "127.0.0.1"
ASK_S = 20.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could lead the token to another host."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Follow none: the answer itself is returned."""


def dashboard_of(record: RegistryEntry) -> Callable[[str], tuple[int, bytes]]:
    """Return a function that asks the dashboard for a path.

    Raises:
        UsageError: the job's Ray has none.
    """
    if record.runner:
        raise UsageError(
            f"the Ray of job {record.name} is one of its own, which has no dashboard",
            hint=f"dljob open {record.uid[:8]} shows the job; on a Ray started by `ray start` there is a dashboard",
        )
    host = record.address.rpartition(":")[0] or LOOPBACK
    token = _token(dict(record.environment))
    # No proxy of the environment may see the token either.
    opener = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))

    headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask_at(host: str, target: str) -> tuple[int, bytes]:
        request = urllib.request.Request(f"http://{host}:{PORT}{target}", headers=headers)
        try:
            with opener.open(request, timeout=ASK_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def ask(target: str) -> tuple[int, bytes]:
        is_local = _is_here(host)
        # Root's programs can read the token anyway.
        if is_local and (others := users_of(PORT) - {0, os.getuid()}):
            raise UnreachableError(
                f"another user's program (uid {min(others)}) listens at port {PORT} here, and would get Ray's token",
                hint=f"ss -ltnp 'sport = :{PORT}' shows the port; start Ray's head while the port is free",
            )
        try:
            try:
                return ask_at(host, target)
            except OSError:
                # A head of this machine: unless it was told otherwise, its dashboard listens on the loopback alone.
                if not is_local or host == LOOPBACK:
                    raise
                return ask_at(LOOPBACK, target)
        except (OSError, HTTPException) as error:
            raise UnreachableError(
                f"no dashboard answers at {host}:{PORT}: {error}",
                hint="`ray start --head --dashboard-host=0.0.0.0` makes it reachable",
            ) from error

    return ask


def _is_here(host: str) -> bool:
    """Whether an address is one of this machine."""
    try:
        with socket.create_server((host, 0)):
            return True
    except OSError:
        return False


def _token(environment: dict[str, str]) -> str:
    if file := environment.get("RAY_AUTH_TOKEN_PATH"):
        try:
            return Path(file).read_text(encoding="utf-8").strip()
        except OSError:
            return ""
    return environment.get("RAY_AUTH_TOKEN", "")
