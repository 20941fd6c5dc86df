"""Output of a job while a script waits for its end: on stdout what its ranks print, on stderr what happens to it."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dljob.errors import DLJobError
from dljob.telemetry.wording import seconds

if TYPE_CHECKING:
    from dljob.api.handle import JobHandle

log = logging.getLogger(__package__)
LAST_LINES_S = 10.0
"""Most seconds, once a job has ended, in which its last lines are still read."""


def describe(note: Mapping[str, Any]) -> str:
    """Format an entry of a job's timeline as a line."""
    target = "" if note["target"] == "job" else f" {note['target']}"
    level = f" [{note['level']}]" if note.get("level") else ""
    took = (
        f" in {seconds(note['seconds'])}" if note["reason"] == "Recovered" and note.get("seconds") is not None else ""
    )
    message = f": {note['message']}" if note.get("message") and not took else ""
    return f"{note['reason']}{target}{level}{took}{message}"


def wait_and_show(handle: JobHandle) -> int:
    """Wait for a job's end, show what `dljob run` would meanwhile, and return the job's exit code."""
    _say(f"job {handle.name} ({handle.uid[:8]}); folder: {handle.dir}")
    shown = [
        # The streams are looked up now: a notebook or a test may have replaced them since the import.
        _in_background(lambda: handle.logs(follow=True, out=sys.stdout), "dljob-output"),
        _in_background(
            lambda: handle.tell_events(lambda note: _say(f"{handle.name}: {describe(note)}"), follow=True),
            "dljob-events",
        ),
    ]
    code = handle.wait_code()
    for thread in shown:
        thread.join(LAST_LINES_S)
    return code


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _in_background(show: Callable[[], None], name: str) -> threading.Thread:
    def run() -> None:
        try:
            show()
        except (DLJobError, OSError, ValueError) as error:  # the script's stream is closed, or PrimeMaster is away
            log.warning("the job's output is not shown any more, the job goes on: %s", error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
