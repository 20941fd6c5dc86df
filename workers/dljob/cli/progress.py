"""Progress of a running job, derived from its status and notes. Pure: lines in and out. `now` is in seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dljob.api.console import describe
from dljob.cli.description import stall_lines
from dljob.cli.output import standing
from dljob.cli.terminal import unbroken
from dljob.spec.status import TERMINAL
from dljob.telemetry.reasons import JOURNAL_STALLED
from dljob.telemetry.wording import level_words, seconds

BARS = "▁▂▃▄▅▆▇█"
NO_BAR = "!"
"""Stands for a value that is NaN or infinite."""
WINDOW = 5
"""Steps of the moving average."""
WIDTH = 30
"""Steps in a sparkline."""
STEP_EVERY_S = 1.0
"""Shortest interval, in seconds, between lines about steps."""
STALL_EVERY_S = 10.0
"""Shortest interval, in seconds, between lines about a step that stands still."""
START_EVERY_S = 5.0
"""Seconds of a start until a line tells what it waits for; each next one comes after twice as long."""
_QUIET = frozenset({"RoleReady", "RoleCompleted", "Admitted", "JobRunning", "Released", "Completed"})
"""Notes that repeat a change of phase."""


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Draw the last values as bars, the lowest value as the smallest bar; equal values as a flat line."""
    shown = list(values)[-width:]
    known = [value for value in shown if math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    return "".join(_bar(value, low, high) for value in shown)


def _bar(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return NO_BAR
    # Halves, as the range of very large values may not be a number; equal values have none to divide by.
    part = (value / 2 - low / 2) / (high / 2 - low / 2) if high / 2 > low / 2 else 0.0
    return BARS[round(part * (len(BARS) - 1))]


def average(values: Sequence[float], window: int = WINDOW) -> float:
    """Return the mean of the last values."""
    last = list(values)[-window:]
    return sum(last) / len(last)


@dataclass(slots=True)
class View:
    """Accumulated view of a job."""

    name: str
    phase: str = ""
    message: str = ""
    step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    history: list[float] = field(default_factory=list[float])
    """Values of the first metric, by step."""
    roles: Sequence[Mapping[str, Any]] = ()
    restarts: Mapping[str, int] = field(default_factory=dict[str, int])
    recent: list[str] = field(default_factory=list[str])
    """Latest notes, as lines."""
    begun: float = 0.0
    """When the command began, or began to watch."""
    slow_import: str = ""
    """Why ranks may be long in their imports; empty: no reason is known."""
    _start_line_after: float = START_EVERY_S
    _step_line_at: float = float("-inf")
    _step_line_of: int | None = None
    standing: str = ""
    """Text about a step that stands still, while that is unusually long."""
    stalls: Sequence[str] = ()
    """A line for each stall that stands."""
    _stalled_at: float | None = None
    _stall_told: float | None = None

    def update(
        self, status: Mapping[str, Any], notes: Sequence[Mapping[str, Any]], now: float, unix: float | None = None
    ) -> list[str]:
        """Add a status and notes; return the lines for a display that is no terminal.

        `unix`: the time of day, to measure how long a step has stood still.
        """
        lines = [self._stamp(describe(note), now) for note in notes if note["reason"] not in _QUIET]
        self.recent = [*self.recent, *lines][-6:]
        self.roles = status.get("roles") or ()
        self.restarts = status.get("restarts") or {}
        self.stalls = stall_lines(status)
        lines += self._phase(status, now) or self._start(status, now)
        progress: Mapping[str, Any] = status.get("progress") or {}
        self.standing = "" if unix is None or self.phase in TERMINAL else standing(progress, unix)
        lines += self._steps(progress, now)
        # After `_steps`, since the line names the step.
        return lines + self._stalled(now)

    def say(self, text: str, now: float) -> str:
        """Format a line of dljob's own, and keep it among the latest."""
        line = self._stamp(text, now)
        self.recent = [*self.recent, line][-6:]
        return line

    def headline(self) -> str:
        """Return the last step with its metrics, moving average and sparkline; empty before the first."""
        if self.step is None:
            return ""
        parts = [f"step {self.step}{self.standing}", *(f"{name} {value:.4g}" for name, value in self.metrics.items())]
        if self.history:
            parts += [f"avg{WINDOW} {average(self.history):.4g}", sparkline(self.history)]
        return "  ".join(parts)

    def _phase(self, status: Mapping[str, Any], now: float) -> list[str]:
        """Return a line for a change of phase, or for a new message of a waiting phase."""
        phase, message = str(status.get("phase", "")), str(status.get("message") or "")
        # The phase stays Pending for as long as there is no capacity, or Running while the journal takes nothing; what
        # is missing changes, and is worth a line.
        waiting = status.get("reason") in ("NoRoom", JOURNAL_STALLED) and message != self.message
        if phase == self.phase and not waiting:
            return []
        self.phase, self.message = phase, message
        if phase == "Recovering" or phase in TERMINAL:
            return []  # the note about the restart, or the outcome, says more
        return [self._stamp(f"{phase}: {message}" if message else phase, now)]

    def _start(self, status: Mapping[str, Any], now: float) -> list[str]:
        """Return a line about a start that lasts: how many ranks are ready, and what the others do."""
        message = str(status.get("message") or "")
        if self.phase != "Scheduling" or status.get("reason") == "NoRoom" or now - self.begun < self._start_line_after:
            return []
        self._start_line_after = 2 * (now - self.begun)
        starting = any(role["running"] > role["ready"] for role in self.roles)
        slow = f" ({self.slow_import})" if self.slow_import else ""
        if self.stalls:  # the message tells of them
            return [self._stamp(f"{self.phase}: {message}", now)]
        doing = "; ".join(status.get("starting") or ()) or (
            f"the others import their code, or are in setup(){slow}" if starting else ""
        )
        return [self._stamp(f"{self.phase}: {message}{'; ' if doing else ''}{doing}", now)]

    def _steps(self, progress: Mapping[str, Any], now: float) -> list[str]:
        step = progress.get("step")
        if step is not None and step != self.step:
            self.step, self.metrics = step, dict(progress.get("metrics") or {})
            if self.metrics:
                # Metrics keep the order of the `progress` call: the first one is the curve.
                self.history.append(next(iter(self.metrics.values())))
        # A fast step loop must not flood the log; `last_step` prints a step that was held back.
        if self.step == self._step_line_of or now - self._step_line_at < STEP_EVERY_S:
            return []
        self._step_line_at, self._step_line_of = now, self.step
        return [self._stamp(self.headline(), now)]

    def _stalled(self, now: float) -> list[str]:
        """Return a line when a step begins to stand still, and again each time the duration has doubled."""
        if not self.standing:
            self._stalled_at = self._stall_told = None
            return []
        if self._stalled_at is None:
            self._stalled_at = now
        lasts = now - self._stalled_at
        # Twice as long each time: a night's stall is a dozen lines in a log file, not thousands.
        if self._stall_told is not None and lasts < max(2 * self._stall_told, STALL_EVERY_S):
            return []
        self._stall_told = lasts
        return [self._stamp(f"step {self.step}{self.standing}", now)]

    def last_step(self, now: float) -> list[str]:
        """Return the line of the last step, if it was held back."""
        if self.step == self._step_line_of:
            return []
        self._step_line_of = self.step
        return [self._stamp(self.headline(), now)]

    def _stamp(self, text: str, now: float) -> str:
        # Messages and names of metrics are users' text.
        return unbroken(f"[{now - self.begun:6.1f}s] {text}")


def outcome_line(status: Mapping[str, Any]) -> str:
    """Describe the outcome of the job in one line."""
    done = f"{status['phase']} after {seconds(status.get('seconds') or 0.0)}"
    restarts: Mapping[str, int] = status.get("restarts") or {}
    counted = ", ".join(f"{v} {level_words(k)}" for k, v in restarts.items() if v) or "none"
    return f"{done}; restarts: {counted}"
