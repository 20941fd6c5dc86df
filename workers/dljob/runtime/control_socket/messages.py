"""Requests and answers: one line of JSON each.

A request is `{"job": UID, "call": NAME, "args": [...]}`. An answer is `{"answer": VALUE}`, or
`{"error": NAME, "message": TEXT, "hint": TEXT}` with the name of an error of `dljob.errors`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from dljob.errors import DeadlineError, DLJobError, NotFoundError, UnreachableError, UsageError

REQUEST_BYTES = 2**20
"""Longest request in bytes, with its line end."""
CALLS: Mapping[str, tuple[type, ...]] = {
    "status": (int, float),
    "notes": (int, float),
    "command": (str, str, str, str),
    "learned": (str, int, str, str),
    "stacks": (str,),
    "pids": (),
    "wait": (float,),
}
"""The methods of `JobConnection` that a request may call, with the types of their arguments."""
LARGEST = 2**53
"""Largest number in a request."""
_ERRORS: Mapping[str, type[DLJobError]] = {
    kind.__name__: kind for kind in (DeadlineError, NotFoundError, UnreachableError, UsageError)
}


def request(uid: str, call: str, args: Sequence[object]) -> bytes:
    """Return a request as bytes.

    Raises:
        UsageError: It is longer than the server reads.
    """
    line = json.dumps({"job": uid, "call": call, "args": list(args)}).encode() + b"\n"
    if len(line) > REQUEST_BYTES:
        raise UsageError(f"the order is {len(line)} bytes long, {REQUEST_BYTES} are allowed")
    return line


def parse(line: bytes, uid: str) -> tuple[str, list[Any]]:
    """Return the call and its arguments, checked by type: nothing else may reach PrimeMaster's methods.

    Raises:
        UsageError: The line is not a request.
        UnreachableError: It is about another job.
    """
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):  # RecursionError: a line of opening brackets, which json parses recursively
        raise UsageError("the request is not one line of JSON") from None
    if not isinstance(document, dict):
        raise UsageError("the request is not an object")
    request_fields = cast("dict[str, Any]", document)
    # The path may have been reused by another job: a command must not stop that one.
    if request_fields.get("job") != uid:
        raise UnreachableError(f"this is the socket of job {uid}")
    call, args = request_fields.get("call"), request_fields.get("args")
    kinds = CALLS.get(call) if isinstance(call, str) else None
    if call is None or kinds is None or not isinstance(args, list):
        raise UsageError(f"there is no call {call!r:.80}; there are {', '.join(CALLS)}")
    arguments = cast("list[Any]", args)
    if len(arguments) != len(kinds) or not all(map(_fits, arguments, kinds)):
        raise UsageError(f"{call} takes {', '.join(kind.__name__ for kind in kinds) or 'nothing'}")
    return call, arguments


def _fits(value: object, kind: type) -> bool:
    if kind is str:
        return isinstance(value, str) and value.isprintable()
    # bool is a subclass of int; NaN fails the comparison, and infinity the bound.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
        return False
    return isinstance(value, int) if kind is int else math.isfinite(value)


def answer(value: object) -> bytes:
    """Return an answer as bytes."""
    return json.dumps({"answer": value}).encode() + b"\n"


def refusal(error: Exception) -> bytes:
    """Return an error as bytes; an error of a class outside `_ERRORS` arrives as an UnreachableError."""
    name = type(error).__name__
    message = error.message if isinstance(error, DLJobError) else f"{name}: {error}"
    hint = error.hint if isinstance(error, DLJobError) else ""
    answer = {"error": name if name in _ERRORS else UnreachableError.__name__, "message": message, "hint": hint}
    return json.dumps(answer).encode() + b"\n"


def result(line: bytes) -> Any:
    """Return the value of an answer.

    Raises:
        ValueError: It is not an answer.
        DLJobError: The error in the answer.
    """
    document = json.loads(line)
    if not isinstance(document, dict) or not ("answer" in document or document.get("error") in _ERRORS):
        raise ValueError("no answer of PrimeMaster")
    answer_fields = cast("dict[str, Any]", document)
    if "error" in answer_fields:
        raise _ERRORS[answer_fields["error"]](
            str(answer_fields.get("message", "")), hint=str(answer_fields.get("hint", ""))
        )
    return answer_fields["answer"]
