"""The sweep's result table as a page."""

from __future__ import annotations

from collections.abc import Sequence

from director import MISSED, Point, Results
from plays import PLAYS, why

HEAD = """\
# The crash sweep

This page is for developers of the operator: it shows that the operator recovers from a crash before and after each of
its calls. Each row is a call that it makes in a job's life on a real API server with the real KubeRay, fake nodes
whose pods KWOK runs, and one real Ray that stands for the heads. There are three plays; each begins with the creation
of the DLJob and ends with a job that has succeeded, its logs saved, its RayCluster deleted, and the DLJob deleted:

- `restart`: one attempt, in which a rank is restarted by annotation;
- `loss`: the head is lost, the attempt fails, and a second one runs to the end;
- `pause`: a Kubernetes node is excluded and its pod replaced; then the job is suspended and resumed.

For each cell one life was played in which the operator was killed once by SIGKILL, right before the call was made or
right after it was answered, and then started again. `same` means that this life ended as one without a kill: with the
same status, one RayCluster and one submission for each attempt, the same children and Events, and nothing left in
Ray. For a call that occurs in several plays the kill is in the first. Calls are named by their subject: a write of
the status by the first thing that it reports; `<n>` is the attempt. Of repeated reads only the first of each kind is
included; of calls that change something, all.

`make sweep` writes this page, and fails for a cell that is not `same`. Seconds are those of the whole life.
"""
CHANCE = "Calls that depend on timing, so that only some lives make them. Each was awaited in up to three lives."


def table(results: Results) -> str:
    """Return the page of the results so far; a field is empty where no operator has died yet."""
    points, chance = results.points(), results.chance()
    text = HEAD
    for play in PLAYS:
        mine = [point for point in points if point.play == play]
        text += "\n".join([f"\n## {play}\n", *_rows(mine, results)]) + "\n"
    if chance:
        text += "\n".join([f"\n## By chance\n\n{CHANCE}\n", *_rows(chance, results), ""])
        text += "".join(f"\n- `{call}`: {why(call)}." for call in dict.fromkeys(point.call for point in chance)) + "\n"
    return f"{text}\n{counts(results)}.\n"


def judged(results: Results) -> list[str]:
    """Return what is wrong: points not met, lives with another end, unexplained calls by chance."""
    points, chance = results.points(), results.chance()
    found = {Point(one.play, one.call, one.when): one.how for one in results.of([*points, *chance])}
    well = {**dict.fromkeys(points, ("same",)), **dict.fromkeys(chance, ("same", MISSED))}
    wrong = [(one, found.get(one, "not tried")) for one in well if found.get(one) not in well[one]]
    lacking = {one.call for one in chance if not why(one.call)}
    return [
        *(f"{one.play} {one.when} {one.call}: {how}" for one, how in wrong),
        *(f"{call}: by chance, and nothing in BY_CHANCE says why" for call in sorted(lacking)),
    ]


def counts(results: Results) -> str:
    """Return how many points were met, and with which result."""
    points = results.points()
    found = [result.how for result in results.of(points)]
    same, missed = found.count("same"), found.count(MISSED)
    return (
        f"{same} of {len(points)} points were met by lives that ended the same; {missed} were not met,"
        f" {len(found) - same - missed} ended otherwise, {len(points) - len(found)} were not tried"
    )


def _rows(points: Sequence[Point], results: Results) -> list[str]:
    rows: dict[str, dict[str, str]] = {point.call: {} for point in points}
    for result in results.of(points):
        how = f"{result.how} ({result.seconds:.0f} s)" if result.how in ("same", MISSED) else f"**{result.how[:200]}**"
        rows[result.call][result.when] = how.replace("|", "/").replace("\n", " ")
    lines = [f"| `{call}` | {row.get('before', '')} | {row.get('after', '')} |" for call, row in rows.items()]
    return ["| call | killed before | killed after |", "| --- | --- | --- |", *lines]
