"""The kept figures: figures.json has the newest rows of each script, and docs/benchmarks.md is made of it.

python tests/bench/figures.py    # write the page again
"""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
KEPT = HERE / "figures.json"
PAGE = HERE.parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
NO_LIMIT = "none"
"""The cell of a figure that has no limit: it is told, and not counted."""
HEAD = ("| what | asked | measured | limit | met |", "| --- | --- | --- | --- | --- |")
"""A table of rows; its last column is empty where a figure has met its limit, so that a missed one is seen at once."""

Kept = dict[str, dict[str, Any]]
"""Script -> when, where and how it was measured last, and its rows."""


def known() -> Kept:
    """Return the figures that are kept."""
    return json.loads(KEPT.read_text())["scripts"]


def keep(kept: Kept) -> None:
    """Write the figures, and the page that is made of them."""
    KEPT.write_text(json.dumps({"scripts": kept}, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(rendered(PAGE.read_text(), kept))


def merged(kept: Kept, name: str, rows: Sequence[dict[str, Any]], facts: dict[str, str], order: Sequence[str]) -> Kept:
    """Return the figures with those of a script replaced.

    Args:
        kept: The figures that are there.
        name: The script.
        rows: What it printed.
        facts: When, where and how.
        order: All scripts, in the order of the page.
    """
    made = kept | {name: facts | {"rows": [worded(row) for row in rows]}}
    return {each: made[each] for each in order if each in made}


def script(name: str) -> Path:
    """Return the path of a benchmark; its folder is named after the part of the product that it measures."""
    return next(HERE.glob(f"*/{name}.py"))


def number(value: float, unit: str) -> str:
    """Return a figure with its unit."""
    digits = 0 if value >= 1000 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f} {unit}"


def worded(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as it is kept: the words of its cells, and all samples."""
    if row.get("failed"):
        return {"what": row["what"], "target": "", "measured": "-", "limit": "-", "met": False}
    more = "; ".join(filter(None, [*map(_fact, row["facts"].items()), row["note"]]))
    measured = number(row["value"], row["unit"]) + (f" ({more})" if more else "")
    limit = NO_LIMIT if row["limit"] is None else number(row["limit"], row["unit"])
    words = {"measured": measured, "limit": limit, "met": row["met"]}
    return {"what": row["what"], "target": row["target"], **words, "unit": row["unit"], "samples": row["samples"]}


def _fact(item: tuple[str, Any]) -> str:
    name, fact = item
    return f"{name}: {'yes' if fact is True else 'NO' if fact is False else fact}"


def spread(row: dict[str, Any]) -> str:
    """Return each sample's smallest, median, largest, and how many; empty without samples."""
    parts = [f"{name} {low_to_high(values)} (n={len(values)})" for name, values in row.get("samples", {}).items()]
    return "; ".join(parts)


def low_to_high(values: Sequence[float]) -> str:
    """Return the smallest, the median and the largest of some values."""
    ordered = sorted(values)
    half = len(ordered) // 2
    middle = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    return " / ".join(f"{value:.3g}" for value in (ordered[0], middle, ordered[-1]))


def line(row: dict[str, Any]) -> str:
    """Return a row of a table."""
    cells = (row["what"], row["target"], row["measured"], row["limit"], "" if row["met"] else "**no**")
    return f"| {' | '.join(cells)} |"


def title(name: str) -> str:
    """Return the first sentence of a script, without its full stop."""
    doc = ast.get_docstring(ast.parse(script(name).read_text())) or name
    return doc.split("\n\n")[0].replace("\n", " ").rstrip(".")


def section(name: str, own: dict[str, Any]) -> str:
    """Return the section of a script."""
    path = script(name).relative_to(HERE.parents[1])
    spreads = own.get("spread") or [spread(row) for row in own["rows"] if row.get("samples")]
    parts = [
        f"### {name}",
        f"{title(name)} ([{path.name}](../{path})). {own['when']}, {own['where']}; {own['how']}.",
        "\n".join([*HEAD, *map(line, own["rows"])]),
        *(["Smallest / median / largest: " + "; ".join(spreads) + "."] if spreads else []),
    ]
    return "\n\n".join(parts)


def summary(kept: Kept) -> str:
    """Return how many of the figures with a limit are met, and which are not."""
    every = [(name, row) for name, own in kept.items() for row in own["rows"]]
    rows = [(name, row) for name, row in every if row["limit"] != NO_LIMIT or not row["met"]]
    missed = [
        f"- {row['what']}: {row['measured']}, limit {row['limit']} ([{name}](#{name}))"
        for name, row in rows
        if not row["met"]
    ]
    said = f"{len(rows) - len(missed)} of {len(rows)} figures are within their limits."
    return "\n".join([f"{said} Missed:", "", *missed]) if missed else said


def rendered(page: str, kept: Kept) -> str:
    """Return the page with the figures as they are kept."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = "\n\n".join([summary(kept), *(section(name, own) for name, own in kept.items())])
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


if __name__ == "__main__":
    keep(known())
