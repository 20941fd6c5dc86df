"""Display of a job: on a terminal one panel, redrawn in place; elsewhere plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from dljob.cli import output
from dljob.cli.progress import View, outcome_line
from dljob.cli.terminal import safe
from dljob.telemetry.wording import seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

_REFRESH_HZ = 8
_OPEN = 8
"""Most unfinished lines that are drawn."""


class Screen(Protocol):
    """Display of a running job."""

    def __enter__(self) -> Self:
        """Begin the display."""
        ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the display; its last state stays visible."""
        ...

    def show(self, status: Mapping[str, Any], notes: Sequence[Mapping[str, Any]]) -> None:
        """Show a status and the notes since the last one."""
        ...

    def say(self, text: str) -> None:
        """Show a line of dljob's own."""
        ...

    redraws: bool
    """Whether an unfinished line can be redrawn."""

    def output(self, lines: Sequence[str], unfinished: Sequence[str]) -> None:
        """Show finished and unfinished lines of ranks; callable from any thread."""
        ...

    def end(self, status: Mapping[str, Any]) -> None:
        """Show the outcome."""
        ...


def screen(name: str, begun: float | None = None, slow_import: str = "") -> Screen:
    """Return a panel if stderr is a terminal, else lines.

    Args:
        name: Name of the job.
        begun: When the command began, if it started a Ray first (`time.monotonic`); None: now.
        slow_import: Why ranks may be long in their imports.
    """
    view = View(name, begun=time.monotonic() if begun is None else begun, slow_import=slow_import)
    # The panel is made of escape sequences: a terminal without colours cannot draw it either.
    return Panel(view) if sys.stderr.isatty() and output.coloured(terminal=True) else Lines(view)


class Lines:
    """Display as one line for each change, on stderr."""

    redraws = False

    def __init__(self, view: View) -> None:
        self._view = view

    def __enter__(self) -> Self:
        """Begin; nothing to prepare."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End; nothing to undo."""

    def show(self, status: Mapping[str, Any], notes: Sequence[Mapping[str, Any]]) -> None:
        """Print the changes since the last status."""
        for line in self._view.update(status, notes, time.monotonic(), time.time()):
            self._print(line)

    def say(self, text: str) -> None:
        """Print a line of dljob's own."""
        self._print(self._view.say(text, time.monotonic()))

    def output(self, lines: Sequence[str], unfinished: Sequence[str]) -> None:
        """Print the finished lines; unfinished ones come once they are finished."""
        del unfinished
        if lines:
            self._print("\n".join(lines))

    def end(self, status: Mapping[str, Any]) -> None:
        """Print the last step and the outcome."""
        now = time.monotonic()
        # A fast loop's last step may have been held back (`View._steps`).
        for line in self._view.last_step(now):
            self._print(line)
        self._print(self._view.say(outcome_line(status), now))

    def _print(self, text: str) -> None:
        output.say(text)


class Panel:
    """Display of phase, roles, step, curve and latest notes, redrawn in place; lines of ranks scroll above it."""

    redraws = True

    def __init__(self, view: View) -> None:
        # Imported here: plain lines need no rich.
        from rich.console import Console
        from rich.live import Live

        self._view = view
        # stdout is for the result, which may go into a pipe while the panel is on the terminal.
        self._live = Live(console=Console(stderr=True), refresh_per_second=_REFRESH_HZ)
        self._unfinished: Sequence[str] = ()

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop drawing; the last picture stays."""
        self._live.__exit__(kind, error, at)

    def show(self, status: Mapping[str, Any], notes: Sequence[Mapping[str, Any]]) -> None:
        """Update and redraw."""
        self._view.update(status, notes, time.monotonic(), time.time())
        self._draw()

    def say(self, text: str) -> None:
        """Add a line and redraw."""
        self._view.say(text, time.monotonic())
        self._draw()

    def output(self, lines: Sequence[str], unfinished: Sequence[str]) -> None:
        """Print all lines above the panel."""
        if unfinished != self._unfinished:
            self._unfinished = unfinished
            # The panel first: lines that have just been finished would otherwise appear twice for a moment.
            self._draw(at_once=bool(lines))
        if lines:
            # rich would break long lines, and copied text would keep the breaks; its highlighter would colour numbers.
            # In one call, since each call redraws the panel.
            self._live.console.print(coloured_text("\n".join(lines)), soft_wrap=True, highlight=False)

    def _draw(self, *, at_once: bool = False) -> None:
        self._live.update(draw(self._view, time.monotonic(), self._unfinished), refresh=at_once)

    def end(self, status: Mapping[str, Any]) -> None:
        """Draw the last picture, with the outcome."""
        self._view.phase = str(status.get("phase", ""))
        self.say(outcome_line(status))


_COLOURS = {
    **dict.fromkeys(("Running", "Succeeded"), "green"),
    **dict.fromkeys(("Recovering", "Stopping", "Stopped"), "yellow"),
    "Failed": "red",
}


def coloured_text(lines: str) -> RenderableType:
    """Convert text of ranks, keeping its colours and no other control sequence."""
    from rich.text import Text

    printable = safe(lines, colours=True)
    return Text.from_ansi(printable) if "\x1b" in printable else Text(printable)


def draw(view: View, now: float, unfinished: Sequence[str] = ()) -> RenderableType:
    """Return the picture of a job, with unfinished lines of ranks above it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    colour = _COLOURS.get(view.phase, "cyan")
    head = Text.assemble((view.name, "bold"), "  ", (view.phase or "starting", colour))
    head.append(f"  {seconds(now - view.begun)}", "dim")
    roles = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("role", "ready", "restarts"):
        roles.add_column(name, header_style="dim")
    for role in view.roles:
        done = role["ready"] + role["succeeded"]
        style = "" if done >= role["desired"] else "yellow"
        roles.add_row(role["name"], Text(f"{done}/{role['desired']}", style), str(role["restarts"] or ""))
    open_lines = [Text(safe(line, colours=False), no_wrap=True, overflow="ellipsis") for line in unfinished[:_OPEN]]
    parts: list[RenderableType] = [*open_lines, head, roles]
    if view.headline():
        parts.append(Text(safe(view.headline(), colours=False)))
    parts += [Text(safe(line, colours=False), "red") for line in view.stalls]
    parts += [Text(safe(line, colours=False), "dim", no_wrap=True, overflow="ellipsis") for line in view.recent]
    return Group(*parts)
