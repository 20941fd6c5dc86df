"""The samples of `make bench-peers`, one line of figures.jsonl each, and which sample comes next.

A line is written as soon as its run has ended, so that the command goes on where it was ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

FIGURES = Path(__file__).parent / "figures.jsonl"
MANY, FEW, SLOW_S = 7, 3, 60.0
"""Samples of a figure; of one whose run takes longer than SLOW_S or has failed; seconds."""
AROUND_S = 10.0
"""Seconds that a run takes beside what it measures: its Ray starts and ends."""
TWICE = 2
"""Samples of a goodput, which takes ten minutes, and where none came back."""
INSTALL = "install"
"""The row of a peer that cannot be installed."""

Cell = tuple[str, str, str]
"""Workload, row, peer."""


@dataclass(frozen=True)
class Sample:
    """What one run measured."""

    workload: str
    row: str
    peer: str
    value: float | None = None
    """Seconds, or MiB in rows of memory; None: there is none, see `why`."""
    why: str = ""
    restarted: int | None = None
    """How many ranks have a new process, where one was killed."""
    left: int = 0
    """Processes that the peer left behind, ended since."""
    again: int = 0
    """How often the peer's command ended before its time and was started again."""
    load: float = 0.0
    cpus: int = 0
    when: str = ""
    commit: str = ""
    """Of dljob and of the bench."""

    @property
    def cell(self) -> Cell:
        """Return where the table has it."""
        return self.workload, self.row, self.peer


def known(path: Path) -> list[Sample]:
    """Return the samples that are there; a line that was cut by an interruption is none."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with suppress(json.JSONDecodeError):
            found.append(Sample(**json.loads(line)))
    return found


def note(path: Path, samples: Iterable[Sample]) -> None:
    """Append samples, behind the newline that an interruption may have kept from the last."""
    text = path.read_text() if path.exists() else ""
    with path.open("a") as file:
        file.write("\n" if text and not text.endswith("\n") else "")
        file.write("".join(json.dumps(asdict(sample)) + "\n" for sample in samples))


def wanted(samples: Sequence[Sample], many: int = MANY) -> int:
    """Return how many samples a figure needs, by those that it has."""
    if any(sample.row == "goodput" for sample in samples):
        return min(TWICE, many)
    values = [sample.value for sample in samples if sample.value is not None]
    if samples and not values:
        return min(TWICE, many)
    slow = len(values) < len(samples) or (values and median(values) + AROUND_S > SLOW_S)
    return min(FEW, many) if slow else many


def next_cell(cells: Sequence[Cell], samples: Sequence[Sample], many: int = MANY) -> Cell | None:
    """Return the cell that is measured next, None when all have their samples.

    The first row that lacks any is finished first; in it the peers take turns (A, B, A, B, ...).
    """
    of = {cell: [sample for sample in samples if sample.cell == cell] for cell in cells}
    lacking = [cell for cell in cells if len(of[cell]) < wanted(of[cell], many)]
    if not lacking:
        return None
    row = [cell for cell in lacking if cell[:2] == lacking[0][:2]]
    return min(row, key=lambda cell: len(of[cell]))


def spoken(samples: Sequence[Sample], unit: str) -> str:
    """Return what the table says of the samples of one cell."""
    values = [sample.value for sample in samples if sample.value is not None]
    whys = sorted({sample.why for sample in samples if sample.value is None})
    if not samples:
        return "not measured"
    parts = []
    if values:
        count = f"n={len(values)}" if len(values) == len(samples) else f"{len(values)} of {len(samples)} runs"
        parts.append(f"{median(values):.{0 if unit == 'MiB' else 2}f} {unit}".rstrip() + f" ({count})")
        restarts = [sample.restarted for sample in samples if sample.restarted is not None]
        parts += [f"{median(restarts):g} restarted"] if restarts else []
    parts += whys
    if again := max(sample.again for sample in samples):
        parts.append(f"its command started again {again} x")
    if left := max(sample.left for sample in samples):
        parts.append(f"left {left} processes")
    return ", ".join(parts)
