"""The figures of the recipes' tables: one for each framework, event and side, kept in figures.jsonl."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

FIGURES = Path(__file__).parent / "figures.jsonl"


@dataclass(frozen=True)
class Figure:
    """One figure of a table."""

    framework: str
    event: str
    who: str
    seconds: float | None = None
    """From the event to the next new step or answer; None: there was none, and the command ended after `ended`."""
    steps: int | None = None
    """How many steps were done again, or how many requests were lost."""
    again: str = ""
    """Why the command had to be started again."""
    ended: float | None = None
    lives: int = 1
    cpus: int = 0
    load: float = 0.0
    unit: str = "step"
    """What `steps` counts: steps or requests."""

    def cell(self) -> str:
        """Return what the table says."""
        if self.seconds is None:
            return f"ends after {self.ended:.1f} s, in incarnation {self.lives}"
        lost = f"{self.seconds:.1f} s, {self.steps} {self.unit}{'' if self.steps == 1 else 's'}"
        return f"{lost}; {self.again}" if self.again else lost


def known() -> dict[tuple[str, str, str], Figure]:
    """The figures that are there."""
    rows = FIGURES.read_text().splitlines() if FIGURES.exists() else []
    figures = [Figure(**json.loads(row)) for row in rows]
    return {(one.framework, one.event, one.who): one for one in figures}


def note(figure: Figure) -> None:
    """Keep a figure, in place of an earlier one."""
    figures = known() | {(figure.framework, figure.event, figure.who): figure}
    FIGURES.write_text("".join(json.dumps(asdict(one)) + "\n" for _, one in sorted(figures.items())))
