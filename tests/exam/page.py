"""The grades that are kept: grades.json, of which a section of docs/benchmarks.md is made.

python tests/exam/page.py    # write the page again
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from cause import GROUPS  # noqa: E402 - found by the path above
from grading import GRADES, INNOCENT, RIGHT  # noqa: E402

KEPT = HERE / "grades.json"
PAGE = HERE.parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- exam -->", "<!-- end of exam -->"
LAST = 20
"""Lines of a peer's output that are graded."""
LEAST = 0.95
"""Of all causes, how many must be right in kind and whom."""
FIELDS = ("group", "grade", "parts", "expected", "blamed", "first", "code", "commit", "when")
"""What is kept of a row."""
PEER_FIELDS = ("grade", "kind", "whom", "when")

Rows = Mapping[str, Mapping[str, Any]]
"""Cause -> its newest row."""
PeerRows = Mapping[str, Rows]
"""Cause -> peer -> its newest row."""


def known() -> dict[str, dict[str, Any]]:
    """Return the rows that are kept."""
    return json.loads(KEPT.read_text())


def keep(rows: Rows, peers: PeerRows) -> None:
    """Replace the kept rows of these causes, and what is kept of peers beside them; write the page."""
    kept = known()
    for name, row in rows.items():
        old = {"peers": kept[name]["peers"]} if "peers" in kept.get(name, {}) else {}
        kept[name] = {key: row[key] for key in FIELDS if key in row} | old
        kept[name]["first"] = without_folders(str(row.get("first", "")))
    for name in kept.keys() & peers.keys():
        new = {peer: {key: of[key] for key in PEER_FIELDS} for peer, of in peers[name].items() if of["grade"] in GRADES}
        if new:
            kept[name]["peers"] = kept[name].get("peers", {}) | new
    KEPT.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(rendered(PAGE.read_text(), kept))


def without_folders(first: str) -> str:
    """Return the first line of an answer, without the folders of the machine that gave it."""
    line = first.partition("\n")[0]
    line = re.sub(r"(?:/[\w.+-]+)+/\.venv", ".venv", line)
    return re.sub(r"/tmp/exam-\w+", "/tmp/exam", line)


def is_right(row: Mapping[str, Any]) -> bool:
    """Whether kind and whom are right, and no innocent is blamed."""
    parts = row.get("parts") or {}
    return row["grade"] not in (INNOCENT, "silent") and bool(parts.get("kind") and parts.get("whom"))


def passes(rows: Rows) -> bool:
    """Whether enough are right, and nobody innocent is blamed."""
    marked = [row for row in rows.values() if row["grade"] in GRADES]
    innocents = [row for row in marked if row["grade"] == INNOCENT]
    return not innocents and sum(map(is_right, marked)) >= LEAST * len(marked)


def line(row: Mapping[str, Any]) -> str:
    """Return a line for a row that was just graded."""
    parts = row.get("parts") or {}
    lacks = ", ".join(name for name, fine in parts.items() if not fine)
    more = row.get("broken") or row.get("missing") or str(row.get("first", "")).replace("\n", " | ")[:200]
    under = f" under {row['peer']}" if row.get("peer") else ""
    return f"{row['grade']:9} {row['name'] + under:32} {f'({lacks}) ' if lacks and row['grade'] != RIGHT else ''}{more}"


def table(rows: Rows) -> list[str]:
    """Return the table of grades by group."""
    head = ["group", "causes", *GRADES, "right in kind and whom"]
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    marked = [row for row in rows.values() if row["grade"] in GRADES]
    for group in (*GROUPS, "all"):
        part = [row for row in marked if group in ("all", row["group"])]
        if part:
            counts = [sum(row["grade"] == grade for row in part) for grade in GRADES]
            share = f"{sum(map(is_right, part))} ({100 * sum(map(is_right, part)) / len(part):.0f} %)"
            lines.append(f"| {' | '.join(map(str, [group, len(part), *counts, share]))} |")
    return lines


def peers_table(rows: Rows, peers: PeerRows) -> list[str]:
    """Return the table of the causes that ran under each peer, too; empty where none did."""
    everyone = dict.fromkeys(peer for name in peers for peer in peers[name])
    both = [name for name in rows if everyone and peers.get(name, {}).keys() >= everyone.keys()]
    if not both:
        return []
    lines = [f"| of {len(both)} causes | {' | '.join(GRADES)} | kind | whom |", f"|{' --- |' * (len(GRADES) + 3)}"]
    for peer in ("dljob", *everyone):
        of = [rows[name] if peer == "dljob" else peers[name].get(peer, {}) for name in both]
        marked = [row for row in of if row.get("grade") in GRADES]
        parts = [row.get("parts", row) for row in marked]
        counts = [sum(row["grade"] == grade for row in marked) for grade in GRADES]
        counts += [sum(bool(part.get(key)) for part in parts) for key in ("kind", "whom")]
        lines.append(f"| {peer} | {' | '.join(map(str, counts))} |")
    return lines


def rendered(page: str, kept: Rows) -> str:
    """Return the page with what is kept."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{section(kept)}\n\n{END}{after}"


def section(kept: Rows) -> str:
    """Return the tables of the page."""
    if not kept:
        return "No grades are kept yet."
    short = [
        f"| {name} | {row['grade']} | {cell(row['expected'].get('whom') or '-')} | {cell(str(row.get('first', '')))} |"
        for name, row in kept.items()
        if row["grade"] in GRADES and row["grade"] != RIGHT
    ]
    rest = (
        ["", "| cause | grade | whose fault | first cause by `why` |", "| --- | --- | --- | --- |", *short]
        if short
        else []
    )
    beside = peers_table(kept, {name: row.get("peers", {}) for name, row in kept.items()})
    words = f"The same programs under peers, graded by the last {LAST} lines that each prints:"
    return "\n".join([*table(kept), *(["", words, "", *beside] if beside else []), *rest])


def cell(text: str) -> str:
    """Return a text that fits a cell of a table."""
    words = " ".join(text.replace("|", "/").replace("<", "&lt;").split())
    return words[:157] + "..." if len(words) > 160 else words


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(), known()))
