"""Node checks before a role starts: which nodes are checked together, and which of them are bad.

Nodes run an all-reduce in teams. A team that passes proves its members. A team that fails has a bad member: the one
that is not proven, where all others are. With three nodes or more, two rounds find any single bad node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high
from typing import TypeAlias

from dljob.master.state import limits
from dljob.master.state.evolve import evolve

Team: TypeAlias = tuple[str, ...]
"""Node ids."""


@dataclass(frozen=True, slots=True)
class Disk:
    """Free space of a file system that the job writes to; `files` None: it has no limit of inodes."""

    path: str
    free: int
    """Free bytes."""
    files: int | None = None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The findings of a checker on one node."""

    node: str
    shape: str = ""
    """Kind of processor or device; only speeds of the same kind are compared."""
    gflops: float = 0.0
    """GFLOP/s of a small matrix product; 0: not measured."""
    memory_free: int | None = None
    """Free memory in bytes; None: not measured."""
    memory_wanted: int = 0
    """Memory in bytes that the role needs there."""
    disks: tuple[Disk, ...] = ()
    clock_s: float = 0.0
    """Seconds by which its clock is ahead of PrimeMaster's, beyond what the round trip explains."""
    trouble: str = ""
    """Why the node failed the check, in words; empty: all that was tried works."""
    unmade: str = ""
    """Why the node could not be checked; empty: it was checked. Such a node is used, as it has not failed."""
    late: bool = False
    """Whether `trouble` is that the check did not answer in time."""


@dataclass(frozen=True, slots=True)
class TeamFacts:
    """The result of a team's all-reduce."""

    nodes: Team
    gbytes_s: float = 0.0
    """Bandwidth in GB/s, where the all-reduce finished."""
    trouble: str = ""
    """Why it failed, in words; empty: it did not."""
    unmade: str = ""
    """Why it could not be tried; empty: it was."""


@dataclass(frozen=True, slots=True)
class RoleCheck:
    """Check results of a role's nodes, and the round that is under way."""

    number: int = 0
    """Count of rounds ordered; an answer with another number is stale."""
    round: int = 0
    """Round that is under way, 1 or 2; 0: none."""
    began: float = 0.0
    """When the first round was ordered (unix seconds)."""
    places: tuple[tuple[str, int, str], ...] = ()
    """(unit, token, node) of the role when the round was ordered; if they differ later, the answer is void."""
    nodes: Team = ()
    """Nodes that are checked in this round."""
    teams: tuple[Team, ...] = ()
    proven: Team = ()
    """Nodes that passed, in the order in which they did."""
    bad: Team = ()
    """Nodes that are certainly bad."""
    failures: tuple[Team, ...] = ()
    """Teams whose all-reduce failed or was too slow."""
    speeds: tuple[tuple[str, str, float], ...] = ()
    """(kind, node, GFLOP/s) of the last measured nodes."""
    paces: tuple[float, ...] = ()
    """GB/s of the last teams that passed."""


# -- teams


def first_round(fresh: Sequence[str], proven: Sequence[str], failures: Collection[Team]) -> tuple[Team, ...]:
    """Return teams for unknown nodes: each with a proven node while there are any, the others in pairs.

    An odd last node joins the last team. Two nodes that failed together are not paired again if another mate is left,
    since the same pair would only fail again.
    """
    teams: list[Team] = list(zip(proven, fresh, strict=False))
    unpaired = list(fresh[len(teams) :])
    while len(unpaired) > 1:
        node = unpaired.pop(0)
        mate = next((mate for mate in unpaired if not failed_together(failures, node, mate)), unpaired[0])
        unpaired.remove(mate)
        teams.append((node, mate))
    if unpaired and teams:
        teams[-1] = (*teams[-1], unpaired[0])
    return tuple(teams)


def second_round(open_nodes: Sequence[str], proven: Sequence[str], failures: Collection[Team]) -> tuple[Team, ...]:
    """Return teams that show which of the open nodes is bad; empty: no team could show more than is known."""
    if proven:
        # A proven partner decides at once: if the team fails, the open node is the bad one.
        return tuple((proven[i % len(proven)], node) for i, node in enumerate(open_nodes))
    if len(open_nodes) > 3:
        # No node is proven: pair each with another one than before. A single bad node fails again, the others pass.
        return first_round(open_nodes, (), failures)
    # So few nodes that all pairs can be tried.
    pairs = ((first, second) for i, first in enumerate(open_nodes) for second in open_nodes[i + 1 :])
    return tuple(pair for pair in pairs if not failed_together(failures, *pair))


def failed_together(failures: Collection[Team], first: str, second: str) -> bool:
    """Whether two nodes failed as a team of their own."""
    return any(set(team) == {first, second} for team in failures)


def disjoint_turns(teams: Iterable[Team]) -> tuple[tuple[Team, ...], ...]:
    """Return the teams in turns, so that no node is in two teams of the same turn."""
    turns: list[list[Team]] = []
    busy: list[set[str]] = []
    for team in teams:
        turn = next((i for i, nodes in enumerate(busy) if nodes.isdisjoint(team)), len(turns))
        if turn == len(turns):
            turns.append([])
            busy.append(set())
        turns[turn].append(team)
        busy[turn].update(team)
    return tuple(tuple(turn_teams) for turn_teams in turns)


# -- judgement

MANY = 4
"""Fewest nodes or teams for which a trouble of most of them is blamed on something that they share."""


def without_shared_lateness(nodes: Sequence[NodeFacts]) -> tuple[NodeFacts, ...]:
    """Return the nodes, without their lateness if most were late: then a shared disk or network is slow."""
    # On few nodes a majority is no evidence of a shared cause.
    late = sum(facts.late for facts in nodes)
    if len(nodes) < MANY or 2 * late <= len(nodes):
        return tuple(nodes)
    suffix = f"; it was so on {late} of {len(nodes)} nodes: do they share a slow disk or network?"
    unmade = {node.node: node.trouble + suffix for node in nodes if node.late}
    return tuple(evolve(n, trouble="", late=False, unmade=unmade[n.node]) if n.late else n for n in nodes)


def without_shared_failures(teams: Sequence[TeamFacts], proven: Collection[str]) -> tuple[TeamFacts, ...]:
    """Return the teams, without their failures if all failed and no member is proven: the role's setup may be wrong."""
    tried_teams = [team for team in teams if not team.unmade]
    has_proven_member = any(node in proven for team in tried_teams for node in team.nodes)
    if len(tried_teams) < MANY or has_proven_member or not all(team.trouble for team in tried_teams):
        return tuple(teams)
    suffix = f"; all {len(tried_teams)} teams failed: is the role's communication set up for its network?"
    return tuple(team if team.unmade else evolve(team, trouble="", unmade=team.trouble + suffix) for team in teams)


def master_clock_error(nodes: Iterable[NodeFacts]) -> float:
    """Return the seconds by which most nodes' clocks lead PrimeMaster's, if PrimeMaster's clock is wrong; else 0."""
    # PrimeMaster's own clock counts as one voice (0.0) in the median, beside the nodes'.
    offsets = sorted([0.0, *(facts.clock_s for facts in nodes if _is_clock_measured(facts))])
    # Of the two middle values the smaller one: in doubt PrimeMaster's clock counts as right.
    middle = min(offsets[(len(offsets) - 1) // 2], offsets[len(offsets) // 2], key=abs)
    return middle if abs(middle) > limits.CHECK_CLOCK_S else 0.0


def _is_clock_measured(facts: NodeFacts) -> bool:
    """Whether a node's clock was measured; a check that failed or was not made may have ended before it."""
    return not facts.trouble and (not facts.unmade or facts.clock_s != 0.0)


def median_speeds(speeds: Iterable[tuple[str, str, float]]) -> dict[str, float]:
    """Return kind -> median GFLOP/s of these nodes."""
    speeds_by_shape: dict[str, list[float]] = {}
    for shape, _, speed in speeds:
        speeds_by_shape.setdefault(shape, []).append(speed)
    return {shape: median_high(shape_speeds) for shape, shape_speeds in speeds_by_shape.items()}


def unfit_reason(facts: NodeFacts, speeds: Mapping[str, float], clock_s: float = 0.0) -> str:
    """Return why a node is unfit by its own findings, in words; empty: it is fit.

    `speeds` are the medians of `median_speeds`, and `clock_s` is the result of `master_clock_error`.
    """
    if facts.trouble:
        return facts.trouble
    if facts.memory_free is not None and facts.memory_free < facts.memory_wanted:
        return f"{_gib(facts.memory_free)} of memory free, {_gib(facts.memory_wanted)} wanted"
    for disk in facts.disks:
        if disk.free < limits.CHECK_DISK_BYTES:
            return f"{disk.path}: {disk.free >> 20} MiB free, {limits.CHECK_DISK_BYTES >> 20} MiB wanted"
        if disk.files is not None and disk.files < limits.CHECK_DISK_FILES:
            return f"{disk.path}: room for {disk.files} more files, {limits.CHECK_DISK_FILES} wanted"
    ahead = facts.clock_s - clock_s if _is_clock_measured(facts) else 0.0
    if abs(ahead) > limits.CHECK_CLOCK_S:
        way = "ahead of" if ahead > 0 else "behind"
        whose = "those of most nodes" if clock_s else "PrimeMaster's"
        return f"its clock is {abs(ahead):.1f} s {way} {whose}"
    pace = speeds.get(facts.shape, 0.0)
    if not facts.gflops or facts.gflops * limits.CHECK_FACTOR >= pace:
        return ""
    return f"matrix product {facts.gflops:.3g} GFLOP/s, others {pace:.3g}"


def team_failure(team: TeamFacts, paces: Sequence[float]) -> str:
    """Return why a team failed, in words; empty: it passed. `paces`: GB/s of all teams, this one included."""
    if team.trouble or not paces or team.gbytes_s * limits.CHECK_PACE_FACTOR >= (pace := median_high(paces)):
        return team.trouble
    return f"all-reduce {team.gbytes_s:.3g} GB/s, others {pace:.3g}"


def find_culprits(failures: Sequence[Team], proven: Collection[str]) -> dict[str, Team]:
    """Return certainly bad node -> the last team that proves it: the team failed, and its other members are proven."""
    culprits: dict[str, Team] = {}
    # From the newest on, so that the message names the latest proof.
    for team in reversed(failures):
        unproven_nodes = [node for node in team if node not in proven]
        if len(unproven_nodes) == 1:
            culprits.setdefault(unproven_nodes[0], team)
    return culprits


def most_suspicious_node(open_nodes: Sequence[str], failures: Collection[Team]) -> tuple[str, Team]:
    """Return the unproven node that failed in most teams (the last of equals), and the nodes that failed with it.

    ("", ()) when none of them failed.
    """
    counts: Mapping[str, int] = {node: sum(node in team for team in failures) for node in open_nodes}
    largest_count = max(counts.values(), default=0)
    if not largest_count:
        return "", ()
    suspect_node = [node for node in open_nodes if counts[node] == largest_count][-1]
    mates = {node for team in failures if suspect_node in team for node in team if node in open_nodes}
    return suspect_node, tuple(node for node in open_nodes if node in mates and node != suspect_node)


def _gib(amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB"
