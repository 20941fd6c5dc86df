"""Display of the ranks' output as it is written, read from the job's folder by a thread beside the one that watches.

A rank that writes faster than anyone reads costs little: per second and rank `MOST_LINES` lines are shown and the rest
is counted, and memory never holds more than a piece of a log.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from dljob.api import logs
from dljob.api.logs import LogLine, LogTail
from dljob.api.values import suggestion
from dljob.cli.terminal import rewritten
from dljob.errors import UsageError
from dljob.telemetry.wording import counted

if TYPE_CHECKING:
    from dljob.spec.model import DLJobManifest

MOST_LINES = 200
"""Most lines that are shown of a rank per second."""
MOST_CHARACTERS = 4000
"""Most characters that are shown of a line."""
UNFINISHED_S = 10.0
"""Interval, in seconds, at which an unfinished line is shown where nothing can be redrawn."""
_FIRST = re.compile(r"\[dljob\] \d\d:\d\d:\d\d \S+ starts, incarnation 1$")
"""dljob's first line in each log, which is not shown; the same line of a later process is news, and is."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Selection of the ranks whose output a command shows."""

    quiet: bool = False
    roles: frozenset[str] = frozenset()
    """Empty: all roles."""

    def check(self, manifest: DLJobManifest) -> None:
        """Refuse roles that the job does not have.

        Raises:
            UsageError: there is no role of that name.
        """
        role_names = [role.name for role in manifest.spec.roles]
        for role in sorted(self.roles - set(role_names)):
            message = f"--roles: job {manifest.metadata.name} has no role {role!r}"
            raise UsageError(message, hint=suggestion(role, role_names))

    def beside(self, screen: Shows, folder: Path) -> AbstractContextManager[object]:
        """Return a context in which the screen shows the selected ranks."""
        return nullcontext() if self.quiet else RankOutput(folder, screen, self.roles or None)


EVERYTHING, NOTHING = Shown(), Shown(quiet=True)


def selected(*, quiet: bool, roles: str | None) -> Shown:
    """Parse `--quiet` and `--roles ROLE,...`.

    Raises:
        UsageError: both are given, or `--roles` names no role.
    """
    if roles is None:
        return Shown(quiet=quiet)
    named = frozenset(filter(None, (name.strip() for name in roles.split(","))))
    if quiet or not named:
        message = "--quiet and --roles do not go together" if quiet else f"--roles {roles!r} names no role"
        raise UsageError(message, hint="--roles trainer,rollout shows the output of two roles, --quiet that of none")
    return Shown(roles=named)


class Shows(Protocol):
    """Screen for ranks' lines."""

    redraws: bool
    """Whether an unfinished line can be redrawn."""

    def output(self, lines: Sequence[str], unfinished: Sequence[str]) -> None:
        """Show finished and unfinished lines."""
        ...

    def say(self, text: str) -> None:
        """Show a line of dljob's own."""
        ...


@dataclass(slots=True)
class Throttle:
    """Limit of a rank's lines in the present second."""

    since: float = float("-inf")
    shown: int = 0
    left_out: int = 0

    def begin(self, now: float) -> int:
        """Begin a new second if this one is over; return the number of lines that the last one left out."""
        if now - self.since < 1.0:
            return 0
        left_out, self.since, self.shown, self.left_out = self.left_out, now, 0, 0
        return left_out

    @property
    def room(self) -> int:
        """Number of lines that may still be shown."""
        return MOST_LINES - self.shown


@dataclass(slots=True)
class ShownRank:
    """Log of one rank on its way to the screen."""

    log: LogTail
    told_at: float
    """Time when an unfinished line was last shown, or last did not exist."""
    throttle: Throttle = field(default_factory=Throttle)
    unfinished: bytes = b""
    """The unfinished line, cut to MOST_CHARACTERS."""
    long: int = 0
    """Number of bytes cut off that line."""
    shown_part: bytes = b""
    """The unfinished line as it was last shown."""

    def turn(self, now: float) -> list[str]:
        """Return the lines to show now; an unfinished one is kept."""
        left_out = self.throttle.begin(now)
        lines = [_skipped_line(self.log.name, left_out)] if left_out else []
        # Read on even when no more may be shown: otherwise a fast rank's display would lag ever further behind.
        for data in self.log.pieces():
            lines += self._take(data)
        return lines

    def last(self) -> list[str]:
        """Return the rest at the end: the unfinished line, and the number of lines left out."""
        left_out = self.throttle.left_out
        lines = [_skipped_line(self.log.name, left_out)] if left_out else []
        return [*lines, self.current()] if self.unfinished else lines

    def current(self) -> str:
        """Return the unfinished line."""
        return self._line(self.unfinished, self.long)

    def unfinished_line_due(self, now: float) -> list[str]:
        """Return the unfinished line at intervals, where nothing can be redrawn: a progress bar may last for hours."""
        # The interval begins with the line, not with the last one that was shown.
        if not self.unfinished:
            self.shown_part, self.told_at = b"", now
        if now - self.told_at < UNFINISHED_S or self.unfinished == self.shown_part:
            return []
        self.shown_part, self.told_at = self.unfinished, now
        return [self.current()]

    def _take(self, data: bytes) -> list[str]:
        ends = data.count(b"\n")
        if not ends:
            self._add(data)
            return []
        # Split off only as many lines as may be shown: splitting all lines of a flood is what would cost time.
        # `first` ends the unfinished line; the last element of `full_lines` is the new unfinished one.
        first, *full_lines = data.split(b"\n", min(ends, max(1, self.throttle.room)))
        self._add(first)
        full_lines, rest = [(self.unfinished, self.long), *((line, 0) for line in full_lines[:-1])], full_lines[-1]
        left_out = ends - len(full_lines)
        if left_out:
            # The limit left whole lines in `rest`; they are counted, and the text after the last one is unfinished.
            rest = rest[rest.rfind(b"\n") + 1 :]
        self.unfinished, self.long = b"", 0
        self._add(rest)
        # Earlier pieces of this second may have used up the rest.
        shown = full_lines[: self.throttle.room]
        self.throttle.shown += len(shown)
        self.throttle.left_out += left_out + len(full_lines) - len(shown)
        return [text for line, cut in shown if not _FIRST.search(text := self._line(line, cut))]

    def _add(self, data: bytes) -> None:
        """Append to the unfinished line; text after a carriage return replaces it."""
        # A carriage return at the end rewrites nothing yet: it may be half of a "\r\n".
        written = data.rstrip(b"\r")
        start = written.rfind(b"\r") + 1
        if start or (written and self.unfinished.endswith(b"\r")):
            self.unfinished, self.long = b"", 0
        room = MOST_CHARACTERS - len(self.unfinished)
        self.unfinished += data[start : start + room]
        self.long += max(0, len(data) - start - room)

    def _line(self, data: bytes, cut: int) -> str:
        # A multi-byte character may be cut in two; its bytes then show as escapes.
        cut += max(0, len(data) - MOST_CHARACTERS)
        text = rewritten(data[:MOST_CHARACTERS].decode("utf-8", "backslashreplace"))
        more = f" ... ({counted(cut, 'more byte')})" if cut else ""
        return f"[{self.log.name}] {text}{more}"


def few(lines: Iterable[LogLine]) -> list[str]:
    """Return the lines of one second, limited per rank, with the count of the rest."""
    shown: list[str] = []
    count: dict[str, int] = {}
    for line in lines:
        name = f"{line.role}/{line.rank}"
        count[name] = count.get(name, 0) + 1
        if count[name] <= MOST_LINES:
            shown.append(f"[{name}] {rewritten(line.text)[:MOST_CHARACTERS]}")
    # One line for each rank that was cut, after all lines of this second.
    more = {name: number - MOST_LINES for name, number in count.items() if number > MOST_LINES}
    return [*shown, *(_skipped_line(name, number) for name, number in more.items())]


def _skipped_line(name: str, count: int) -> str:
    return f"[{name}] [dljob] {count:,} more {'line' if count == 1 else 'lines'} in its log alone"


class RankOutput:
    """Context that shows the ranks' lines while it is open; on exit all lines have been shown."""

    def __init__(
        self, folder: Path, screen: Shows, roles: Collection[str] | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._screen, self._roles, self._clock = folder, screen, roles, clock
        self._ranks: dict[Path, ShownRank] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dljob-output", daemon=True)

    def __enter__(self) -> Self:
        """Begin to read."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Read the ranks' output to its end."""
        self._over.set()
        # The reader ends after one more turn: lines may have been written since its last one.
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._over.wait(logs.POLL_S):
                self.turn()
            self.turn()
            self.finish()
        except Exception as error:  # noqa: BLE001 - the job must go on without a display, and its logs are complete
            self._screen.say(
                f"the ranks' output is not shown any more ({type(error).__name__}: {error}); see dljob logs"
            )

    def turn(self) -> None:
        """Show the output written since the last call."""
        now = self._clock()
        for path, log in logs.find_logs(self._folder, self._roles).items():
            # New ranks appear while the job runs, so the folder is listed in each turn.
            self._ranks.setdefault(path, ShownRank(log, now))
        lines: list[str] = []
        for rank in self._ranks.values():
            lines += rank.turn(now)
            lines += [] if self._screen.redraws else rank.unfinished_line_due(now)
        # All lines of a turn in one call: the panel is redrawn once per call (ADR 58).
        self._screen.output(lines, [rank.current() for rank in self._ranks.values() if rank.unfinished])

    def finish(self) -> None:
        """Show the rest, after all ranks have ended."""
        self._screen.output([line for rank in self._ranks.values() for line in rank.last()], [])
