"""Feed of `dljob top`: asks for news in a thread, so that a silent cluster never keeps a key waiting."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from dljob.cli.top.picture import TopTable
from dljob.errors import DLJobError

REFRESH_S = 1.0
"""Time between two questions, in seconds."""


class TopFeed:
    """The newest table, made again and again by `ask`; the descriptor `news` is readable when there is another."""

    def __init__(self, ask: Callable[[], TopTable]) -> None:
        self._ask = ask
        self._over = threading.Event()
        self.news, self._bell = os.pipe()
        os.set_blocking(self._bell, False)
        self.table: TopTable | None = None
        self.trouble = ""
        """Why the last question had no answer."""
        self.error: BaseException | None = None
        """What the first question ended with; nothing is asked after it."""
        # A daemon: a question that hangs must not keep the command.
        self._thread = threading.Thread(target=self._run, name="dljob-top", daemon=True)

    @property
    def newest(self) -> TopTable:
        """The newest table, once there is one."""
        if self.table is None:
            raise RuntimeError("nothing was answered yet")
        return self.table

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def close(self) -> None:
        """Ask no more."""
        self._over.set()

    def clear(self) -> None:
        """Take the sign that there is news."""
        os.read(self.news, 4096)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.table, self.trouble = self._ask(), ""
            except BaseException as error:  # noqa: BLE001 - told to the user: at once, or beside the last picture
                if self.table is None:
                    self.error = error
                self.trouble = error.message if isinstance(error, DLJobError) else f"{type(error).__name__}: {error}"
            self._ring()
            if self.error is not None:
                return
            self._over.wait(REFRESH_S)

    def _ring(self) -> None:
        with suppress(BlockingIOError):  # the pipe is full of signs already
            os.write(self._bell, b".")
