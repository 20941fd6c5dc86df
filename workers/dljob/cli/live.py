"""A job on a terminal: one panel, redrawn in place; and the plain form of the same elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from dljob.cli import output
from dljob.cli.progress import View, last_word

if TYPE_CHECKING:
    from rich.console import RenderableType

_REFRESH_HZ = 8


class Screen(Protocol):
    """Something that shows a running job."""

    def __enter__(self) -> Self:
        """Begin to show."""
        ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop showing; what was shown stays."""
        ...

    def show(self, status: Mapping[str, Any], notes: Sequence[Mapping[str, Any]]) -> None:
        """Take in a status and the notes since the last one."""
        ...

    def say(self, text: str) -> None:
        """A line of our own."""
        ...

    def end(self, status: Mapping[str, Any]) -> None:
        """The last word."""
        ...


def screen(name: str) -> Screen:
    """A panel where stderr is a terminal, else lines."""
    view = View(name, begun=time.monotonic())
    return Panel(view) if sys.stderr.isatty() and output.coloured(terminal=True) else Lines(view)


class Lines:
    """One line for each change, on stderr."""

    def __init__(self, view: View) -> None:
        self._view = view

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing to undo."""

    def show(self, status: Mapping[str, Any], notes: Sequence[Mapping[str, Any]]) -> None:
        """The lines that this is worth."""
        for line in self._view.update(status, notes, time.monotonic()):
            output.say(line)

    def say(self, text: str) -> None:
        """A line of our own."""
        output.say(self._view.say(text, time.monotonic()))

    def end(self, status: Mapping[str, Any]) -> None:
        """The last step and the last word."""
        now = time.monotonic()
        for line in self._view.last_step(now):
            output.say(line)
        output.say(self._view.say(last_word(status), now))


class Panel:
    """Phase, roles, step, curve and the latest notes, redrawn in place."""

    def __init__(self, view: View) -> None:
        from rich.console import Console
        from rich.live import Live

        self._view = view
        self._live = Live(console=Console(stderr=True), refresh_per_second=_REFRESH_HZ)

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the last picture on the screen."""
        self._live.__exit__(kind, error, at)

    def show(self, status: Mapping[str, Any], notes: Sequence[Mapping[str, Any]]) -> None:
        """Redraw."""
        self._view.update(status, notes, time.monotonic())
        self._live.update(draw(self._view, time.monotonic()))

    def say(self, text: str) -> None:
        """Add a line and redraw."""
        self._view.say(text, time.monotonic())
        self._live.update(draw(self._view, time.monotonic()))

    def end(self, status: Mapping[str, Any]) -> None:
        """The last picture, with the last word."""
        self._view.phase = str(status.get("phase", ""))
        self.say(last_word(status))


_COLOURS = {"Running": "green", "Succeeded": "green", "Failed": "red", "Recovering": "yellow", "Stopping": "yellow"}


def draw(view: View, now: float) -> RenderableType:
    """The picture of a job."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    colour = _COLOURS.get(view.phase, "cyan")
    head = Text.assemble((view.name, "bold"), "  ", (view.phase or "starting", colour))
    head.append(f"  {output.seconds(now - view.begun)}", "dim")
    roles = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("role", "ready", "restarts"):
        roles.add_column(name, header_style="dim")
    for role in view.roles:
        done = role["ready"] + role["succeeded"]
        style = "" if done >= role["desired"] else "yellow"
        roles.add_row(role["name"], Text(f"{done}/{role['desired']}", style), str(role["restarts"] or ""))
    parts: list[RenderableType] = [head, roles]
    if view.headline():
        parts.append(Text(view.headline()))
    parts += [Text(line, "dim", no_wrap=True, overflow="ellipsis") for line in view.recent]
    return Group(*parts)
