"""Picture of `dljob top`: all jobs, or the ranks of one, as lines of a given size. Pure; `now` is in unix seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size

from dljob.api.shown_job import JobSummary, Overview
from dljob.api.views import entries, nested
from dljob.cli.description import STILL, one_line, rank_phase, stall_lines
from dljob.cli.output import age, saved, span, standing
from dljob.cli.terminal import safe
from dljob.spec.status import total_restarts
from dljob.telemetry.wording import counted

Json = Mapping[str, Any]

KEYS = "q quit  j/k or arrows scroll  s sort"
SILENT_S = 5.0
"""Age of a heartbeat from which a rank is marked: hosts send one about once a second."""
_LARGE = 1e15
"""Numbers beyond it are damage: JSON in Python reads infinity."""
_GAP = 2
_WIDEST = 24


class TopCell(NamedTuple):
    """One cell, and the value that its column is sorted by."""

    text: str
    value: Any = None


@dataclass(frozen=True, slots=True)
class TopColumn:
    """A column of a table."""

    name: str
    cell: Callable[[Json], TopCell]
    keep: int
    """Columns with the smallest number are left out first where the terminal is narrow."""
    falls: bool = False
    """Whether its largest value comes first."""


@dataclass(frozen=True, slots=True)
class TopTable:
    """Rows under a heading."""

    head: Sequence[str]
    """Lines above the table."""
    columns: Sequence[TopColumn]
    rows: Sequence[Json]
    marked: Callable[[Json], bool]
    """Whether a row needs attention."""
    comes_last: Callable[[Json], bool] = lambda _: False
    """Whether a row comes behind those of which this is not true, however the table is sorted."""


@dataclass(slots=True)
class TopPosition:
    """What a user has chosen: the first row that is shown, and the column by which rows are sorted."""

    first: int = 0
    sort: int = 0

    def press(self, key: str, columns: int, page: int) -> bool:
        """Take a key; returns False for the one that ends the display."""
        match key:
            case "q":
                return False
            case "s":
                self.sort = (self.sort + 1) % columns
            case "g":
                self.first = 0
            case _:
                step = {"j": 1, "down": 1, "k": -1, "up": -1, " ": page, "pagedown": page, "pageup": -page}.get(key, 0)
                self.first = max(0, self.first + step)
        return True


def plain(text: str, width: int = 200) -> str:
    """Return a text of users as one line without control sequences."""
    return safe(one_line(text, width), colours=False)


# -- all jobs


def of_jobs(jobs: Sequence[JobSummary], now: float) -> TopTable:
    """Return the table of all jobs; the newest comes last, as in `dljob status`."""
    rows = [
        {
            "namespace": job.namespace,
            "name": job.name,
            "phase": job.phase,
            "shown_phase": job.shown_phase,
            "ready": job.ready,
            "step": job.progress.get("step"),
            "stands": "" if job.phase in STILL else standing(job.progress, now),
            "restarts": job.restarts,
            "uid": job.uid[:8],
            "started": job.started,
            "age": age(job.started, now),
        }
        for job in jobs
    ]
    phases = Counter(str(job.phase) for job in jobs)
    phase_text = ", ".join(f"{count} {plain(phase)}" for phase, count in sorted(phases.items())) or "none"
    space = [_text("NAMESPACE", "namespace", 5)] if any(job.namespace for job in jobs) else []
    columns = [
        *space,
        _text("NAME", "name", 9),
        _text("PHASE", "shown_phase", 8),
        _text("READY", "ready", 6),
        TopColumn("STEP", lambda row: TopCell(f"{_number(row['step'])}{row['stands']}", row["step"]), 7, falls=True),
        TopColumn("RESTARTS", lambda row: TopCell(str(row["restarts"]), row["restarts"]), 4, falls=True),
        _text("UID", "uid", 3),
        TopColumn("AGE", lambda row: TopCell(row["age"], row["started"]), 2, falls=True),
    ]
    return TopTable(
        [f"jobs: {phase_text}"],
        columns,
        rows,
        marked=lambda row: row["phase"] in ("Failed", "Lost", "Recovering"),
        comes_last=lambda row: row["phase"] in STILL,
    )


def _text(name: str, key: str, keep: int) -> TopColumn:
    return TopColumn(name, lambda row: TopCell(plain(str(row.get(key) or "-"), _WIDEST), str(row.get(key) or "")), keep)


def _number(value: object) -> str:
    return "-" if value is None else str(value)


# -- one job


def of_job(job: Overview, now: float) -> TopTable:
    """Return the table of a job's ranks; of its roles where its ranks are not known."""
    status = job.status
    progress = nested(status, "progress")
    stands = "" if job.phase in STILL else standing(progress, now)
    parts = [] if progress.get("step") is None else [f"step {progress['step']}{stands}{saved(progress)}"]
    goodput = progress.get("goodputPermille")
    parts += [] if goodput is None else [f"goodput {goodput / 10:.1f}%"]
    parts.append(f"restarts {total_restarts(nested(status, 'restarts'))}")
    head = [plain(f"{job.title}: {job.shown_phase}"), "  ".join(parts)]
    if stalls := stall_lines(status):
        head[1:1] = [plain(line) for line in stalls]
    elif status.get("message"):
        head.insert(1, plain(f"{status.get('reason') or ''}: {status['message']}".removeprefix(": ")))
    if faults := entries(status, "recentFaults"):
        head.append(plain(f"last failure: {faults[-1].get('firstCause')}"))
    if "ranks" not in status:
        return TopTable(head, _ROLES, entries(status, "roles"), lambda role: bool(role.get("failed")))
    ranks = entries(status, "ranks")
    phases = Counter(map(rank_phase, ranks))
    counts = ", ".join(f"{count} {plain(phase)}" for phase, count in sorted(phases.items()))
    total = f"{counted(len(ranks), 'rank')}{': ' if counts else ''}{counts}"
    return TopTable([*head, total], _RANKS, ranks, _needs_attention)


def _needs_attention(rank: Json) -> bool:
    return rank.get("phase") == "Failed" or _value(rank, "heartbeatAge") > SILENT_S


def _value(row: Json, key: str) -> float:
    """Return a number of a row; -1, below all, for none: it may be of another version."""
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and abs(value) < _LARGE else -1.0


def _measure(name: str, key: str, keep: int, show: Callable[[float], str], *, falls: bool = True) -> TopColumn:
    def cell(row: Json) -> TopCell:
        value = _value(row, key)
        return TopCell("-" if value < 0 else show(value), value)

    return TopColumn(name, cell, keep, falls)


def _mib(value: float) -> str:
    return f"{value / 1024:.1f} GiB" if value >= 1024 else f"{value:.0f} MiB"


_RANKS = (
    TopColumn(
        "RANK",
        lambda row: TopCell(plain(f"{row.get('role')}/{row.get('rank')}"), (str(row.get("role")), _value(row, "rank"))),
        9,
    ),
    TopColumn("PHASE", lambda row: TopCell(plain(rank_phase(row)), rank_phase(row)), 7),
    _measure("STEP", "step", 8, lambda value: f"{value:.0f}", falls=False),
    _measure("STEP TIME", "secondsPerStep", 6, span),
    _measure("HEARD", "heartbeatAge", 5, lambda value: f"{span(value)} ago"),
    _measure("MEMORY", "memoryMib", 4, _mib),
    _measure("DEVICE", "deviceMib", 3, _mib),
    _measure("INCARNATION", "incarnation", 2, lambda value: f"{value:.0f}"),
    TopColumn("NODE", lambda row: TopCell(plain(str(row.get("nodeName") or row.get("node") or "-"), _WIDEST)), 1),
)
_ROLES = (
    _text("ROLE", "name", 9),
    _measure("READY", "ready", 8, lambda value: f"{value:.0f}", falls=False),
    _measure("DESIRED", "desired", 7, lambda value: f"{value:.0f}"),
    _measure("FAILED", "failed", 6, lambda value: f"{value:.0f}"),
    _measure("RESTARTS", "restarts", 5, lambda value: f"{value:.0f}"),
)


# -- lines


class TopLine(NamedTuple):
    """A line of the picture, and how it stands out."""

    text: str
    style: str = ""


def lines(table: TopTable, at: TopPosition, width: int, height: int, remark: str = "") -> list[TopLine]:
    """Return as many lines as the terminal has, each as wide as it; changes `at` where it is beyond the rows.

    `remark`: why the picture may be old.
    """
    at.sort = min(at.sort, len(table.columns) - 1)
    rows = ordered(table, at.sort)
    # Where there is no room for everything, the table comes before what stands above it.
    head = [TopLine(line) for line in table.head][: max(0, height - 4)]
    room = max(0, height - len(head) - 2)
    at.first = min(at.first, max(0, len(rows) - room))
    part = rows[at.first : at.first + room]
    shown = fitting(table.columns, part, width)
    cells = [[column.cell(row).text for column in shown] for row in part]
    widths = [max([len(column.name), *(cell_len(row[n]) for row in cells)]) for n, column in enumerate(shown)]
    drawn_lines = [*head, TopLine(_joined([column.name for column in shown], widths), "head")]
    for row, texts in zip(part, cells, strict=True):
        drawn_lines.append(TopLine(_joined(texts, widths), "mark" if table.marked(row) else ""))
    drawn_lines += [TopLine("")] * (height - 1 - len(drawn_lines))
    range_text = f"  {at.first + 1}-{at.first + len(part)} of {len(rows)}" if len(part) < len(rows) else ""
    foot = plain(remark) if remark else f"{KEYS}: {table.columns[at.sort].name.lower()}{range_text}"
    drawn_lines = [*drawn_lines[: max(0, height - 1)], TopLine(foot, "mark" if remark else "foot")]
    return [TopLine(set_cell_size(line.text, width), line.style) for line in drawn_lines]


def _joined(texts: Sequence[str], widths: Sequence[int]) -> str:
    return (" " * _GAP).join(
        set_cell_size(text, width) if cell_len(text) < width else text
        for text, width in zip(texts, widths, strict=True)
    )


def ordered(table: TopTable, sort: int) -> list[Json]:
    """Return the rows by a column; equal ones in their own order."""
    column = table.columns[sort]
    values = [(column.cell(row), row) for row in table.rows]
    # Text and numbers are never in one column, but a value may be missing.
    missing = [row for cell, row in values if cell.value is None]
    known = [(cell.value, row) for cell, row in values if cell.value is not None]
    rows = [row for _, row in sorted(known, key=lambda pair: pair[0], reverse=column.falls)] + missing
    return sorted(rows, key=table.comes_last)


def fitting(columns: Sequence[TopColumn], rows: Sequence[Json], width: int) -> list[TopColumn]:
    """Return the columns that have room, by what matters most; the first one of them always."""
    least = {column.name: max([len(column.name), *(cell_len(column.cell(row).text) for row in rows)])
             for column in columns}  # fmt: skip
    fitting_columns = list(columns)
    while len(fitting_columns) > 1 and sum(least[fitted.name] + _GAP for fitted in fitting_columns) - _GAP > width:
        fitting_columns.remove(min(fitting_columns, key=lambda column: column.keep))
    return fitting_columns


def full_table(table: TopTable) -> list[str]:
    """Return the whole table for a file or a pipe: every row and column, whatever the width."""
    rows = [[column.name for column in table.columns]]
    rows += [[column.cell(row).text for column in table.columns] for row in ordered(table, 0)]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return [*table.head, "", *(_joined(row, widths).rstrip() for row in rows)]
