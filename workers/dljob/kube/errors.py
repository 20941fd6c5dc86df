"""Errors of the API server, and of the connection to it."""

from __future__ import annotations

import json
from typing import Any, cast

from dljob.errors import ExitCode, NotFoundError, UnreachableError

_HINTS = {
    0: "is the cluster up, and is this the right context? `kubectl cluster-info` asks the same server",
    401: "the credentials are not (or no longer) taken: log in again; `kubectl auth whoami` asks the same server",
    403: "ask for the right, or use another account; `kubectl auth can-i --list` shows what this one may do",
}


class ApiError(UnreachableError):
    """The API server refused, or was not reached: `status` is the HTTP code, 0 without an answer.

    `reason` is the server's machine-readable word (AlreadyExists, Conflict, Forbidden, ...), the message its sentence.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message, hint=_HINTS.get(status, ""))
        self.status = status
        self.reason = reason


class NotThereError(NotFoundError, ApiError):
    """404: the API server has no such object, or no such kind."""

    exit_code = ExitCode.NOT_FOUND


def from_answer(status: int, body: bytes, call: str) -> ApiError:
    """Convert an HTTP answer of 400 or above to an error; `what` describes the call when the answer is no Status."""
    answer = status_object(body)
    message = (
        str(answer.get("message") or "")
        or f"{call}: HTTP {status} {body[:300].decode(errors='replace').strip()}".rstrip()
    )
    return from_status(status, str(answer.get("reason") or ""), message)


def from_status(status: int, reason: str, message: str) -> ApiError:
    """Return the error of an HTTP status."""
    return (NotThereError if status == 404 else ApiError)(status, reason, message)


def status_object(body: bytes) -> dict[str, Any]:
    """Return the `Status` in a refusal by the API server itself; empty for any other body."""
    try:
        parsed = json.loads(body)
    except ValueError:
        return {}
    # A proxy in between may answer anything.
    if not isinstance(parsed, dict):
        return {}
    status = cast("dict[str, Any]", parsed)
    return status if status.get("kind") == "Status" and status.get("apiVersion") == "v1" else {}
