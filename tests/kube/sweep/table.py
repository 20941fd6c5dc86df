"""The sweep's table as a page."""

from __future__ import annotations

from collections.abc import Sequence

from director import MISSED, Point, Results
from plays import PLAYS, why

HEAD = """\
# The crash sweep

One job's life on a real API server with the real KubeRay, fake nodes whose pods KWOK runs, and one real Ray that
stands for the heads, in three plays. Each begins with the DLJob and ends with a job that has succeeded, its logs saved,
its RayCluster deleted, and the DLJob deleted:

- `restart`: one attempt, in which a rank is restarted by annotation;
- `loss`: the head is lost, the attempt has failed, and a second one runs to the end;
- `pause`: a Kubernetes node is excluded and its pod replaced; then the job is suspended and resumed.

In each field's life the operator ended as by SIGKILL, once, right before the call was made, or right after it was
answered, and was started again. `same`: the life ended as those in which nobody died: the same status, one RayCluster
and one submission for each attempt, the same children and Events, and nothing left in Ray. A call of several plays is
died at in the first. Calls are told by what they are about: a status by the first thing that it tells, and `<n>` is the
attempt. Of looks that are repeated the first of each kind is died at, and every call that changes something.

Made by `make sweep`, which fails for a field that is not `same`. Seconds are of the whole life.
"""
CHANCE = "Calls that some lives make and some do not, whatever is done. Each was waited for in up to three lives."


def table(results: Results) -> str:
    """The page, as far as lives were lived; a field is empty where nobody died yet."""
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
    """What is wrong: points not met, lives that ended otherwise, calls by chance that nobody has explained."""
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
    """How many points were met, and how."""
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
