"""Answers of `dljob open --ray`: Ray's dashboard, asked by the command with Ray's token, which stays here."""

from __future__ import annotations

import mimetypes
import re
import threading
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import unquote

from dljob.errors import DLJobError
from dljob.report.live.feed import in_thread
from dljob.report.live.server import PageAnswer, PageRequest, trouble

AskDashboard = Callable[[str], tuple[int, bytes]]
"""Returns status and body for a path with its query. Blocks; raises DLJobError without an answer."""
POLICY = "default-src 'self' 'unsafe-inline' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Ray's own pages have scripts and styles in them; no other host is asked."""
_PATH = re.compile(r"/[\w.~!$&'()*+,;=:@%/-]*", re.ASCII)


class RayApp:
    """Handler of the server for one dashboard; it is asked for one thing at a time."""

    def __init__(self, ask: AskDashboard) -> None:
        self._ask = ask
        self._lock = threading.Lock()

    async def __call__(self, request: PageRequest) -> PageAnswer:
        """Answer a reader with what the dashboard answers."""
        if not is_plain(request.path):
            return PageAnswer(HTTPStatus.BAD_REQUEST)
        target = request.path + (f"?{request.search}" if request.search else "")
        try:
            status, body = await in_thread(lambda: self._ask_alone(target))
        except DLJobError as error:
            return trouble(error.message)
        kind = mimetypes.guess_type(request.path)[0] or _kind_of(body)
        return PageAnswer(status, body, kind, {"Content-Security-Policy": POLICY})

    def _ask_alone(self, target: str) -> tuple[int, bytes]:
        with self._lock:
            return self._ask(target)


def is_plain(path: str) -> bool:
    """Whether a path stays below that of the dashboard: the API server's proxy would resolve `..` to its own paths."""
    parts = unquote(path).split("/")[1:]
    return bool(_PATH.fullmatch(path)) and "%2f" not in path.lower() and ".." not in parts and "\\" not in unquote(path)


def _kind_of(body: bytes) -> str:
    start = body[:64].lstrip().lower()
    if start.startswith(b"<"):
        return "text/html; charset=utf-8"
    return "application/json" if start[:1] in (b"{", b"[") else "text/plain; charset=utf-8"
