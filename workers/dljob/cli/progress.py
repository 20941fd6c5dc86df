"""What a running job shows, drawn from its status and notes: pure, lines in and lines out. `now` is in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dljob.cli.output import seconds

BARS = "▁▂▃▄▅▆▇█"
WINDOW = 5
"""The moving average is over so many steps."""
WIDTH = 30
"""A sparkline shows so many steps."""
STEP_EVERY_S = 1.0
"""Lines about steps come no faster."""
FINAL = ("Succeeded", "Failed")
_QUIET = frozenset({"RoleReady", "RoleCompleted", "Admitted", "JobRunning", "Released", "Completed"})
"""Notes that the change of phase says already."""


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """The last values as bars, the lowest of them the smallest bar; all equal: a flat line."""
    shown = list(values)[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    if high == low:
        return BARS[0] * len(shown)
    top = len(BARS) - 1
    return "".join(BARS[round((v - low) / (high - low) * top)] for v in shown)


def average(values: Sequence[float], window: int = WINDOW) -> float:
    """The mean of the last values."""
    last = list(values)[-window:]
    return sum(last) / len(last)


@dataclass(slots=True)
class View:
    """What has been seen of a job so far."""

    name: str
    phase: str = ""
    message: str = ""
    step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    history: list[float] = field(default_factory=list[float])
    """The first metric, by step."""
    roles: Sequence[Mapping[str, Any]] = ()
    restarts: Mapping[str, int] = field(default_factory=dict[str, int])
    recent: list[str] = field(default_factory=list[str])
    """The latest notes as lines."""
    begun: float = 0.0
    _step_line_at: float = float("-inf")
    _step_line_of: int | None = None

    def update(self, status: Mapping[str, Any], notes: Sequence[Mapping[str, Any]], now: float) -> list[str]:
        """Take in what is new; the lines that it is worth on something that is no terminal."""
        lines = [self._stamp(text, now) for note in notes if (text := describe(note))]
        self.recent = [*self.recent, *lines][-6:]
        self.roles = status.get("roles") or ()
        self.restarts = status.get("restarts") or {}
        lines += self._phase(status, now)
        lines += self._steps(status.get("progress") or {}, now)
        return lines

    def say(self, text: str, now: float) -> str:
        """A line of our own, kept among the latest."""
        line = self._stamp(text, now)
        self.recent = [*self.recent, line][-6:]
        return line

    def headline(self) -> str:
        """The last step with its metrics, moving average and sparkline; empty before the first."""
        if self.step is None:
            return ""
        parts = [f"step {self.step}", *(f"{name} {value:.4g}" for name, value in self.metrics.items())]
        if self.history:
            parts += [f"avg{WINDOW} {average(self.history):.3f}", sparkline(self.history)]
        return "  ".join(parts)

    def _phase(self, status: Mapping[str, Any], now: float) -> list[str]:
        """A line when the phase changed, or when a phase that waits says something else."""
        phase, message = str(status.get("phase", "")), str(status.get("message") or "")
        waiting = status.get("reason") == "NoRoom" and message != self.message
        if phase == self.phase and not waiting:
            return []
        self.phase, self.message = phase, message
        if phase == "Recovering" or phase in FINAL:
            return []  # the note about the restart, or the last word, says more
        return [self._stamp(f"{phase}: {message}" if message else phase, now)]

    def _steps(self, progress: Mapping[str, Any], now: float) -> list[str]:
        step = progress.get("step")
        if step is not None and step != self.step:
            self.step, self.metrics = step, dict(progress.get("metrics") or {})
            if self.metrics:
                self.history.append(next(iter(self.metrics.values())))
        if self.step == self._step_line_of or now - self._step_line_at < STEP_EVERY_S:
            return []
        self._step_line_at, self._step_line_of = now, self.step
        return [self._stamp(self.headline(), now)]

    def last_step(self, now: float) -> list[str]:
        """The line of the last step, if it was held back."""
        if self.step == self._step_line_of:
            return []
        self._step_line_of = self.step
        return [self._stamp(self.headline(), now)]

    def _stamp(self, text: str, now: float) -> str:
        return f"[{now - self.begun:6.1f}s] {text}"


def describe(note: Mapping[str, Any]) -> str:
    """A note as a line; empty for what the phase says already."""
    reason = note["reason"]
    if reason in _QUIET:
        return ""
    target = "" if note["target"] == "job" else f" {note['target']}"
    level = f" [{note['level']}]" if note.get("level") else ""
    took = f" in {seconds(note['seconds'])}" if reason == "Recovered" and note.get("seconds") is not None else ""
    message = f": {note['message']}" if note.get("message") and not took else ""
    return f"{reason}{target}{level}{took}{message}"


def last_word(status: Mapping[str, Any]) -> str:
    """How the job ended, in a line."""
    done = f"{status['phase']} after {seconds(status.get('seconds') or 0.0)}"
    restarts: Mapping[str, int] = status.get("restarts") or {}
    counted = ", ".join(f"{v} {k.replace('_', ' ')}" for k, v in restarts.items() if v) or "none"
    return f"{done}; restarts: {counted}"
