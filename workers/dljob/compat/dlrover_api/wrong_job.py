"""Errors of a job that dljob cannot run, which DLRover's users catch as ValueErrors."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from dljob.errors import SpecError, UsageError


class WrongJobError(UsageError, ValueError):
    """A job or a call of a builder says what dljob cannot do."""


class WrongSpecError(SpecError, ValueError):
    """The spec of a job is wrong; `problems` holds all faults at once."""


@contextmanager
def wrong_job() -> Generator[None]:
    """Raise what is wrong with a job as a ValueError, which is a SpecError or a UsageError still.

    Raises:
        WrongJobError: for a UsageError.
        WrongSpecError: for a SpecError.
    """
    try:
        yield
    except SpecError as error:
        raise WrongSpecError(error.problems, hint=error.hint).with_traceback(error.__traceback__) from None
    except UsageError as error:
        raise WrongJobError(error.message, hint=error.hint).with_traceback(error.__traceback__) from None
