"""PrimeMaster's log in the job's folder, `logs/master.log`: JSON lines that `dljob logs JOB --master` reads.

A thread writes them: a slow volume must not block the event loop, which answers heartbeats. Warnings also go to the
process's stderr, where Ray's own tools look for them.
"""

from __future__ import annotations

import logging
import queue
import threading
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path

from dljob.json_log import JsonLines
from dljob.logs.master import NAME

MOST_BYTES = 32 << 20
"""Size limit of the file; the one before it stays as `master.log.1`."""
CLOSE_S = 1.0
"""Longest time (s) that a hanging volume delays the end of a master."""


class MasterLog:
    """The log handlers of one PrimeMaster process, from its start to its end."""

    def __init__(self, folder: Path, logger: logging.Logger | None = None) -> None:
        """Begin to log below the job's `folder`; where that is not writable, only warnings are kept, on stderr."""
        self._logger = logger or logging.getLogger("dljob")
        self._logger.setLevel(logging.INFO)
        errors = logging.StreamHandler()
        errors.setLevel(logging.WARNING)
        errors.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._handlers: list[logging.Handler] = [errors]
        self._listener: QueueListener | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            (folder / "logs").mkdir(exist_ok=True)
            file = _File(folder / "logs" / NAME, maxBytes=MOST_BYTES, backupCount=1, encoding="utf-8", delay=True)
        except OSError as error:
            self._logger.warning("PrimeMaster keeps no log in %s: %s", folder, error)
        else:
            lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
            handler = QueueHandler(lines)
            handler.setFormatter(JsonLines())
            self._handlers.append(handler)
            self._listener = QueueListener(lines, file)
            self._listener.start()
        for handler in self._handlers:
            self._logger.addHandler(handler)

    def close(self) -> None:
        """Write what is queued, for `CLOSE_S` at most, and stop. Idempotent."""
        for handler in self._handlers:
            self._logger.removeHandler(handler)
        self._handlers = []
        listener, self._listener = self._listener, None
        if listener is not None:
            # `QueueListener.stop` joins its thread without a timeout, and that thread may hang in a write.
            stopping = threading.Thread(target=_stop, args=(listener,), name="dljob-log", daemon=True)
            stopping.start()
            stopping.join(CLOSE_S)


def _stop(listener: QueueListener) -> None:
    listener.stop()
    for handler in listener.handlers:
        handler.close()


class _File(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """Drop a line that a full disk does not take: the job goes on, and the journal tells of the disk."""
