"""Where an error that reached a rank by a call began: the line of the callee's code, through any number of calls.

A reply has the callee's error as text, so that no class of it must be known to the caller. Its origin goes along from
callee to caller: the one that ends names the first.
"""

from __future__ import annotations

import dis
import traceback
from collections.abc import Iterator
from contextlib import ContextDecorator
from typing import cast

from dljob.errors import CallError, CallTimeoutError, ErrorOrigin, JobEndingError, RemoteError


class _EndsAtCaller(ContextDecorator):
    """Has errors of calls end at the line of the user's that waits for them: frames of dljob say nothing there."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CallError):
            # Python adds no frame of the function that has the `with` statement when it raises the error again.
            error.__traceback__ = None


ends_at_caller = _EndsAtCaller()
"""For `with` in coroutines and generators, and as a decorator of plain functions."""


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, then the one that it was raised from, and so on to the first one.

    Raised from: by `raise ... from`, or by a `raise` in the handler of the other. An error that code called by a
    handler raises has a cause of its own. The first error of a group stands for the group.
    """
    seen_ids = set[int]()
    following: BaseException | None = error
    while following is not None and id(following) not in seen_ids:
        yield following
        seen_ids.add(id(following))
        if isinstance(following, BaseExceptionGroup):
            following = cast("BaseExceptionGroup[BaseException]", following).exceptions[0]
            continue
        handled = None if following.__suppress_context__ else following.__context__
        is_end = isinstance(following, SystemExit)  # in a handler programs end by it for what they handle
        follows = handled is not None and (is_end or _replaces(following, handled))
        following = handled if follows else following.__cause__


def is_job_ending(error: BaseException | None) -> bool:
    """Whether an error only says that the job is ending, here or in a callee: nobody needs its traceback."""
    for cause in () if error is None else error_chain(error):
        remote_type = cause.origin.error_type if isinstance(cause, RemoteError) and cause.origin else ""
        if isinstance(cause, JobEndingError) or remote_type == JobEndingError.__name__:
            return True
    return False


def _replaces(error: BaseException, handled: BaseException) -> bool:
    """Whether a `raise` statement of a function that handled an error raised another one in its place."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or last.tb_frame.f_code.co_code[last.tb_lasti] != dis.opmap["RAISE_VARARGS"]:
        return False
    return any(frame is last.tb_frame for frame, _ in traceback.walk_tb(handled.__traceback__))


def remote_origin(error: BaseException) -> ErrorOrigin | None:
    """Return where the error of a callee, or its silence, began from which this one was raised; None: in no callee."""
    origins = (link.origin for link in error_chain(error) if isinstance(link, RemoteError | CallTimeoutError))
    return next((origin for origin in origins if origin is not None), None)
