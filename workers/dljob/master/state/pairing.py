"""Who is checked together with whom before a role starts, and who is bad: decided by names and results alone.

Nodes do an all-reduce in teams. A team that passes proves its members; one that fails has a bad member, and where all
others of it are proven, that is the one. With three nodes or more, two rounds find any single bad one.
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
    """What is free where something will be written; `files` None: the file system counts none."""

    path: str
    free: int
    """Bytes."""
    files: int | None = None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a checker found on a node."""

    node: str
    shape: str = ""
    """What it computes with; speeds of the same shape are compared."""
    gflops: float = 0.0
    """Of a small matrix product; 0: not measured."""
    memory_free: int | None = None
    memory_wanted: int = 0
    """Bytes."""
    disks: tuple[Disk, ...] = ()
    clock_s: float = 0.0
    """How far its clock is from PrimeMaster's, beyond what the way there explains."""
    trouble: str = ""
    """What does not work there, in words; empty: everything that was tried does."""
    unmade: str = ""
    """Why it could not be checked; empty: it was."""
    late: bool = False
    """Whether the trouble is that nobody answered in time."""


@dataclass(frozen=True, slots=True)
class TeamFacts:
    """How an all-reduce went."""

    nodes: Team
    gbytes_s: float = 0.0
    """Its bandwidth, where it came to its end."""
    trouble: str = ""
    unmade: str = ""


@dataclass(frozen=True, slots=True)
class RoleCheck:
    """What is known of a role's nodes, and the round that is under way."""

    number: int = 0
    """Counts the rounds that were ordered: an answer to another one is of the past."""
    round: int = 0
    """1 or 2; 0: none is under way."""
    began: float = 0.0
    """When the first round was ordered (unix seconds)."""
    places: tuple[tuple[str, int, str], ...] = ()
    """(unit, token, node) of the role when it was ordered."""
    nodes: Team = ()
    """The nodes that are checked in this round."""
    teams: tuple[Team, ...] = ()
    proven: Team = ()
    """Nodes that may be used, in the order in which that was found."""
    bad: Team = ()
    failures: tuple[Team, ...] = ()
    """The teams that failed."""
    speeds: tuple[tuple[str, str, float], ...] = ()
    """(shape, node, GFLOP/s)."""
    paces: tuple[float, ...] = ()
    """GB/s of the teams that passed, the last ones."""


# -- teams


def first_round(fresh: Sequence[str], proven: Sequence[str], failures: Collection[Team]) -> tuple[Team, ...]:
    """Teams for nodes that nothing is known of: with a proven one where there is one for it, else with each other."""
    made: list[Team] = list(zip(proven, fresh, strict=False))
    left = list(fresh[len(made) :])
    while len(left) > 1:
        one = left.pop(0)
        mate = next((node for node in left if not met(failures, one, node)), left[0])
        left.remove(mate)
        made.append((one, mate))
    if left and made:
        made[-1] = (*made[-1], left[0])
    return tuple(made)


def second_round(open_: Sequence[str], proven: Sequence[str], failures: Collection[Team]) -> tuple[Team, ...]:
    """Teams that tell who of the open nodes is bad; none: no team could tell more than is known."""
    if proven:
        return tuple((proven[i % len(proven)], node) for i, node in enumerate(open_))
    if len(open_) > 3:
        return first_round(open_, (), failures)
    pairs = ((one, other) for i, one in enumerate(open_) for other in open_[i + 1 :])
    return tuple(pair for pair in pairs if not met(failures, *pair))


def met(failures: Collection[Team], one: str, other: str) -> bool:
    """Whether two nodes, and nobody with them, failed together."""
    return any(set(team) == {one, other} for team in failures)


def waves(teams: Iterable[Team]) -> tuple[tuple[Team, ...], ...]:
    """The teams in as few turns as it takes so that no node is in two at once."""
    made: list[list[Team]] = []
    busy: list[set[str]] = []
    for team in teams:
        turn = next((i for i, nodes in enumerate(busy) if nodes.isdisjoint(team)), len(made))
        if turn == len(made):
            made.append([])
            busy.append(set())
        made[turn].append(team)
        busy[turn].update(team)
    return tuple(tuple(wave) for wave in made)


# -- judgement

MANY = 4
"""Of so many on, what goes wrong with most is rather something that they share than each one's own."""


def excused(nodes: Sequence[NodeFacts]) -> tuple[NodeFacts, ...]:
    """The nodes; where most of them were too late, a slow disk or network of all, that tells nothing about any."""
    late = sum(facts.late for facts in nodes)
    if len(nodes) < MANY or 2 * late <= len(nodes):
        return tuple(nodes)
    why = f"; so it was on {late} of {len(nodes)} nodes: is there a disk or network that they share?"
    return tuple(evolve(one, trouble="", late=False, unmade=one.trouble + why) if one.late else one for one in nodes)


def excused_teams(teams: Sequence[TeamFacts], proven: Collection[str]) -> tuple[TeamFacts, ...]:
    """The teams; where no all-reduce works at all, and nobody in them is proven, that tells nothing about any node."""
    made = [team for team in teams if not team.unmade]
    known = any(node in proven for team in made for node in team.nodes)
    if len(made) < MANY or known or not all(team.trouble for team in made):
        return tuple(teams)
    why = f"; so did all {len(made)}: is the role's communication set up as its network wants it?"
    return tuple(team if team.unmade else evolve(team, trouble="", unmade=team.trouble + why) for team in teams)


def clock(nodes: Iterable[NodeFacts]) -> float:
    """How far most clocks are ahead of PrimeMaster's, where it is that one which is wrong; else 0."""
    seen = sorted([0.0, *(facts.clock_s for facts in nodes if _compared(facts))])
    middle = min(seen[(len(seen) - 1) // 2], seen[len(seen) // 2], key=abs)
    return middle if abs(middle) > limits.CHECK_CLOCK_S else 0.0


def _compared(facts: NodeFacts) -> bool:
    """Whether a node's clock was looked at, as far as that can be told."""
    return not facts.trouble and (not facts.unmade or facts.clock_s != 0.0)


def usual(speeds: Iterable[tuple[str, str, float]]) -> dict[str, float]:
    """Shape -> GFLOP/s, of which half of these nodes have more or as much."""
    found: dict[str, list[float]] = {}
    for shape, _, speed in speeds:
        found.setdefault(shape, []).append(speed)
    return {shape: median_high(alike) for shape, alike in found.items()}


def unfit(facts: NodeFacts, speeds: Mapping[str, float], clock_s: float = 0.0) -> str:
    """What speaks against a node by itself, in words; empty: nothing.

    `speeds` are what is usual, by shape, and `clock_s` what `clock` said.
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
    ahead = facts.clock_s - clock_s if _compared(facts) else 0.0
    if abs(ahead) > limits.CHECK_CLOCK_S:
        way = "ahead of" if ahead > 0 else "behind"
        whose = "those of most nodes" if clock_s else "PrimeMaster's"
        return f"its clock is {abs(ahead):.1f} s {way} {whose}"
    pace = speeds.get(facts.shape, 0.0)
    if not facts.gflops or facts.gflops * limits.CHECK_FACTOR >= pace:
        return ""
    return f"matrix product {facts.gflops:.3g} GFLOP/s, others {pace:.3g}"


def failed(team: TeamFacts, paces: Sequence[float]) -> str:
    """Why a team did not pass, in words; empty: it did. `paces` are the bandwidths of all teams, it among them."""
    if team.trouble or not paces or team.gbytes_s * limits.CHECK_PACE_FACTOR >= (pace := median_high(paces)):
        return team.trouble
    return f"all-reduce {team.gbytes_s:.3g} GB/s, others {pace:.3g}"


def convicted(failures: Sequence[Team], proven: Collection[str]) -> dict[str, Team]:
    """Nodes that are bad for sure, and the last team that shows it: it failed, and all others of it are proven."""
    found: dict[str, Team] = {}
    for team in reversed(failures):
        rest = [node for node in team if node not in proven]
        if len(rest) == 1:
            found.setdefault(rest[0], team)
    return found


def suspect(open_: Sequence[str], failures: Collection[Team]) -> tuple[str, Team]:
    """Of nodes none of which is proven, the one that failed most often, the last of these; and who failed with it.

    ("", ()) when none of them failed.
    """
    counts: Mapping[str, int] = {node: sum(node in team for team in failures) for node in open_}
    most = max(counts.values(), default=0)
    if not most:
        return "", ()
    worst = [node for node in open_ if counts[node] == most][-1]
    others = {node for team in failures if worst in team for node in team if node in open_}
    return worst, tuple(node for node in open_ if node in others and node != worst)


def _gib(amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB"
