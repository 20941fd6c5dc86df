"""The process of a job's metric sinks, started by PrimeMaster on its node.

    python -m dljob.runtime.sinks.process '{"name": ..., "uid": ..., "attempt": 1, "folder": ..., "code": ...}'

Reads rows from its stdin, one JSON list a line: [incarnation, step, unix seconds, {name: value}]. Writes a JSON object
per problem to its stdout: {"sink": name, "said": text}. What sinks themselves print goes to stderr, a file.

When stdin ends, whether PrimeMaster closed it or died, the sinks close within `END_S` seconds, and this process ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, TextIO

from dljob.logs import archive
from dljob.runtime.process.extensions import SINKS, installed
from dljob.runtime.sinks.feeding import MetricRow, SinkFeeder, redacted
from dljob.runtime.sinks.sink import SinkRun

END_S = 10.0
"""Seconds that all sinks have to write what they hold, once the job or PrimeMaster has ended."""
LOCK = "sinks.lock"


def folder_of(order: dict[str, Any], volume: str) -> Path:
    """Return the folder for the files of all sinks: on the checkpoint volume, or in the job's folder without one."""
    root = archive.root(volume, order["name"], order["uid"]) if volume else Path(order["folder"])
    return root / "metrics"


def code_of(order: dict[str, Any]) -> str:
    """Return the folder of user code: if the job names none, the one in which Ray started PrimeMaster; empty: none."""
    current_folder = str(Path.cwd())
    # As for ranks (`environment.located`): the root folder holds no user code.
    return order["code"] or ("" if current_folder == "/" else current_folder)


def feeders(
    points: dict[str, EntryPoint], order: dict[str, Any], folder: Path, say: Callable[[str, str], None]
) -> list[SinkFeeder]:
    """Return a feeder for each sink; each has a folder of its own."""
    name, uid, attempt = str(order["name"]), str(order["uid"]), int(order["attempt"])
    return [
        SinkFeeder(sink, point.load, SinkRun(f"{name}-{uid[:8]}", name, uid, attempt, folder / sink), say)
        for sink, point in sorted(points.items())
    ]


def feed(lines: Iterable[str], attempt: int, sinks: list[SinkFeeder]) -> None:
    """Hand all rows to all sinks. A line that was torn by PrimeMaster's death is left out."""
    for line in lines:
        try:
            incarnation, step, at, metrics = json.loads(line)
        except ValueError:
            continue
        for sink in sinks:
            sink.put(MetricRow((attempt, incarnation), step, at, metrics))


def end(sinks: list[SinkFeeder], seconds: float, say: Callable[[str, str], None]) -> None:
    """Close all sinks; one that has not closed after so many seconds is reported, and left behind."""
    until = time.monotonic() + seconds
    for sink in sinks:
        sink.end()
    for sink in sinks:
        sink.thread.join(max(0.0, until - time.monotonic()))
        if sink.thread.is_alive():
            say(sink.name, f"did not close within {seconds:g} s, and is left behind")


def report(out: TextIO, lock: threading.Lock, sink: str, problem: str) -> None:
    """Report a problem to PrimeMaster, without secrets of the environment."""
    line = json.dumps({"sink": sink, "said": redacted(problem, os.environ)})
    try:
        with lock:
            out.write(line + "\n")
            out.flush()
    except OSError:  # PrimeMaster is gone; the log has it as well
        pass
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - the log of this process


def main(arguments: list[str]) -> None:
    """Serve one job until stdin ends."""
    order: dict[str, Any] = json.loads(arguments[0])
    code = code_of(order)
    sys.path[:0] = [code] if code else []
    # Sinks print what they like: descriptor 1 becomes the log, and reports go to a copy of the pipe.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out, Path(order["folder"], LOCK).open("w") as lock:
        os.dup2(2, 1)
        # The process of an earlier PrimeMaster may still be closing its sinks: two writers would mix up a run.
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = folder_of(order, os.environ.get(archive.CHECKPOINT, ""))
        say = partial(report, out, threading.Lock())
        sinks = feeders(installed(SINKS, code), order, folder, say)
        for sink in sinks:
            sink.thread.start()
        feed(sys.stdin, int(order["attempt"]), sinks)
        end(sinks, END_S, say)
    # Not a regular exit, which would wait for threads of a sink that hangs.
    os._exit(0)


if __name__ == "__main__":  # pragma: no cover - the line that PrimeMaster runs
    main(sys.argv[1:])
