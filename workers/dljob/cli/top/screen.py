"""Terminal of `dljob top`: its own page, keys without Enter, and everything as before at any end.

A signal that ends or stops the process restores the terminal first; after a stop the page is drawn again.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from dljob.cli import output
from dljob.cli.top.feed import TopFeed
from dljob.cli.top.picture import TopLine, TopPosition, lines

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The alternate page without a cursor, and back."""
_KEY = re.compile(r"\x1b[\[O](?:([ABCD])|([56])~|[0-9;]*[~A-Za-z])|(.)", re.DOTALL)
_ARROWS = {"A": "up", "B": "down", "5": "pageup", "6": "pagedown"}
_STYLES = {"head": "\x1b[7m", "mark": "\x1b[31m", "foot": "\x1b[2m"}
_Handler = Callable[[int, FrameType | None], object]
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def possible() -> bool:
    """Whether there is a terminal to draw on, and to read keys from."""
    return sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM") not in (None, "", "dumb")


class TopScreen:
    """The terminal of this process, from `on` to `off`."""

    def __init__(self) -> None:
        self.input, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._before: list[Any] = termios.tcgetattr(self.input)
        self.coloured = output.coloured(terminal=True)

    def on(self) -> None:
        """Take the terminal: no echo, keys at once; Ctrl-C and Ctrl-Z still send their signals."""
        mode = termios.tcgetattr(self.input)
        mode[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(self.input, termios.TCSANOW, mode)
        self._write(ENTER)

    def off(self) -> None:
        """Give the terminal back as it was."""
        with suppress(OSError, termios.error):  # it may be gone, and then nothing of it can be restored
            self._write(LEAVE)
            termios.tcsetattr(self.input, termios.TCSANOW, self._before)

    def size(self) -> tuple[int, int]:
        """Return columns and lines; a terminal without a size has the usual one."""
        with suppress(OSError):  # the usual size below
            columns, rows = os.get_terminal_size(self._out)
            if columns and rows:
                return columns, rows
        return 80, 24

    def draw(self, page_lines: Sequence[TopLine]) -> None:
        """Draw all lines of the page."""
        # Line by line at its place: a line that fills the last column must not move the page up.
        self._write("".join(f"\x1b[{row};1H{self._styled(line)}" for row, line in enumerate(page_lines, 1)))

    def _styled(self, line: TopLine) -> str:
        style = _STYLES.get(line.style, "") if self.coloured else ""
        return f"{style}{line.text}\x1b[0m" if style else line.text

    def read_keys(self) -> list[str]:
        """Return the keys that were pressed; EOFError when the terminal is gone."""
        typed = os.read(self.input, 1024)
        if not typed:
            raise EOFError
        keys: list[str] = []
        for arrow, page, letter in _KEY.findall(typed.decode("utf-8", "replace")):
            keys.append(_ARROWS.get(arrow or page, "") if arrow or page else letter)
        return keys

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(self._out, data) :]


def show(feed: TopFeed) -> None:
    """Show the tables of a feed until the user ends it.

    Raises:
        DLJobError: the first question had no answer.
    """
    feed.start()
    select.select([feed.news], [], [])
    if feed.error is not None:
        raise feed.error
    try:
        _show(feed)
    finally:
        feed.close()


def _show(feed: TopFeed) -> None:
    screen, at = TopScreen(), TopPosition()
    with _signals(screen) as wake:
        screen.on()
        try:
            while _turn(screen, feed, at, wake):
                pass
        except EOFError:
            pass  # the terminal is gone: there is nobody left to show anything to
        finally:
            screen.off()


def _turn(screen: TopScreen, feed: TopFeed, at: TopPosition, wake: int) -> bool:
    """Draw, and wait for a key, news or a signal; returns False when the user ends it."""
    columns, rows = screen.size()
    screen.draw(lines(feed.newest, at, columns, rows, feed.trouble))
    ready, _, _ = select.select([screen.input, feed.news, wake], [], [])
    if wake in ready:
        os.read(wake, 4096)
    if feed.news in ready:
        feed.clear()
    if screen.input in ready:
        return all(at.press(key, len(feed.newest.columns), max(1, rows - 8)) for key in screen.read_keys())
    return True


@contextmanager
def _signals(screen: TopScreen) -> Generator[int]:
    """Restore the terminal before a signal ends or stops this process; yields a descriptor that signals wake."""
    wake, bell = os.pipe()
    for end in (wake, bell):
        os.set_blocking(end, False)

    def ends(number: int, _frame: FrameType | None) -> None:
        screen.off()
        # By the signal itself, so that a shell or a script sees what ended it.
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    def stops(number: int, _frame: FrameType | None) -> None:
        screen.off()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        # Here it goes on; also after a SIGSTOP, which cannot be caught, by the next handler.
        signal.signal(number, stops)

    def goes_on(_number: int, _frame: FrameType | None) -> None:
        screen.on()

    def resized(_number: int, _frame: FrameType | None) -> None:
        """Do nothing: the descriptor is woken, and the page drawn anew."""

    handlers: dict[signal.Signals, _Handler] = {
        **dict.fromkeys(_ENDS, ends),
        signal.SIGTSTP: stops,
        signal.SIGCONT: goes_on,
        signal.SIGWINCH: resized,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    woken = signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
    try:
        yield wake
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(wake)
        os.close(bell)
