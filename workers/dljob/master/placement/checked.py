"""The results of node checks: nodes that passed are used, bad ones are excluded, doubts lead to a second round."""

from __future__ import annotations

from dljob.master.placement import nodes
from dljob.master.start import checks, starting
from dljob.master.state import limits
from dljob.master.state.events import NodesChecked
from dljob.master.state.evolve import evolve
from dljob.master.state.pairing import (
    RoleCheck,
    Team,
    clock,
    convicted,
    excused,
    excused_teams,
    failed,
    second_round,
    suspect,
    unfit,
    usual,
)
from dljob.master.state.transaction import StateTransaction
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted


def checked(d: StateTransaction, event: NodesChecked) -> None:
    """Handle the result of a round of checks. A stale one, or one about reservations given up since, is ignored."""
    own, role = d.checks.get(event.role), event.role
    if own is None or not own.round or own.number != event.number or not d.phase.active:
        return
    was, own = own.round, evolve(own, round=0)
    # Units moved during the round: `start_world` orders a new one where nodes are still unknown.
    if checks.places_of(d, role) != own.places:
        d.checks = d.checks.set(role, own)
        starting.start_world(d, role)
        return
    own, found = _learned(d, event, own)
    everybody, known = checks.nodes_of(own.places), frozenset(own.proven)
    open_ = tuple(node for node in everybody if node not in known and node not in found)
    # A failed team of two unknown nodes says that one is bad, but not which: the second round tells them apart.
    doubtful = {node for team in own.failures for node in team}
    if was == 1 and not doubtful.isdisjoint(open_):
        teams = second_round(open_, tuple(node for node in everybody if node in known), own.failures)
        if teams:
            checks.ask(d, role, evolve(own, round=2), (), teams)
            return
    # There is no third round: a doubt that is left excludes the node most suspect.
    _ended(d, role, own, found, open_)


def _learned(d: StateTransaction, event: NodesChecked, own: RoleCheck) -> tuple[RoleCheck, dict[str, str]]:
    """Return the check results including this answer, and the bad nodes with the reason of each."""
    # Troubles that most nodes share are no node's own.
    event = evolve(event, nodes=excused(event.nodes), teams=excused_teams(event.teams, frozenset(own.proven)))
    seen = {node for _, node, _ in own.speeds}
    speeds = own.speeds + tuple((f.shape, f.node, f.gflops) for f in event.nodes if f.gflops and f.node not in seen)
    pace = usual(speeds)
    most = clock(event.nodes)
    found = {f.node: why for f in event.nodes if (why := unfit(f, pace, most))}
    # A node that could not be checked counts as proven: a bug of the check must not stop a job.
    proven = dict.fromkeys((*own.proven, *(facts.node for facts in event.nodes if facts.unmade)))
    _report_unchecked(d, event, most)
    said, paces = _teams(event, own)
    proven |= {node: None for team in event.teams if team.nodes not in said for node in team.nodes}
    good = {node: None for node in proven if node not in found}
    failures = own.failures + tuple(team for team in said if team not in own.failures)
    guilty, here = convicted(failures, good.keys()), set(checks.nodes_of(own.places))
    for node, team in guilty.items():
        # Any other bad node is only remembered, since no unit of the role is there.
        if node in here:
            others = " and ".join(d.node_names(member for member in team if member != node))
            found.setdefault(node, f"{said.get(team, 'an all-reduce failed')}, with {others}, proven good")
    bad, kept = tuple(dict.fromkeys((*own.bad, *guilty))), limits.CHECK_PACES
    own = evolve(own, proven=tuple(good), bad=bad, failures=failures, speeds=speeds[-kept:], paces=paces[-kept:])
    return own, found


def _report_unchecked(d: StateTransaction, event: NodesChecked, most: float) -> None:
    """Report the checks that could not be made, equal reasons of many nodes or teams in one line."""
    nodes, teams = dict[str, list[str]](), dict[str, list[str]]()
    for facts in event.nodes:
        nodes.setdefault(facts.unmade, []).append(facts.node)
    for team in event.teams:
        teams.setdefault(team.unmade, []).append(", ".join(d.node_names(team.nodes)))
    for why, (first, *more) in nodes.items():
        if why:
            d.note(reasons.CHECK_NOT_MADE, f"node/{first}", why + _and(len(more), "nodes"))
    for why, (first, *more) in teams.items():
        if why:
            d.note(reasons.CHECK_NOT_MADE, event.role, f"all-reduce of {first}: {why}" + _and(len(more), "teams"))
    if most:
        way = "behind" if most > 0 else "ahead of"
        words = f"PrimeMaster's clock is {abs(most):.1f} s {way} most nodes', which are compared with each other"
        d.note(reasons.CHECK_NOT_MADE, "master", f"{words}; set the clock of its machine")


def _and(count: int, whom: str) -> str:
    return f" (and {count} more {whom})" if count else ""


def _teams(event: NodesChecked, own: RoleCheck) -> tuple[dict[Team, str], tuple[float, ...]]:
    """Return failed team -> reason, and the bandwidths (GB/s) of teams that passed, earlier rounds included."""
    made = [team for team in event.teams if not team.unmade]
    paces = (*own.paces, *(team.gbytes_s for team in made if not team.trouble))
    said = {team.nodes: why for team in made if (why := failed(team, paces))}
    return said, (*own.paces, *(team.gbytes_s for team in made if team.nodes not in said))


def _ended(d: StateTransaction, role: str, own: RoleCheck, found: dict[str, str], open_: Team) -> None:
    """Start the role if all its nodes may be used; else exclude the bad ones, or the one most suspect."""
    done = evolve(own, bad=tuple(dict.fromkeys((*own.bad, *found))), places=(), nodes=(), teams=())
    d.checks = d.checks.set(role, done)
    if not found:
        worst, companions = suspect(open_, own.failures)
        if not worst:
            _passed(d, role, checks.nodes_of(own.places))
            return
        doubt = "one of them is bad, and no other node was there to tell which"
        found = {worst: f"an all-reduce with {' and '.join(d.node_names(companions))} failed; {doubt}"}
    nodes.leave_bad(d, {node: f"before {role} started: {why}" for node, why in found.items()})


def _passed(d: StateTransaction, role: str, everybody: Team) -> None:
    """Record that all nodes of a role passed, and start its world."""
    own = d.checks[role]
    proven = tuple(dict.fromkeys((*own.proven, *everybody)))
    d.checks = d.checks.set(role, evolve(own, proven=proven))
    count = len(everybody)
    message = f"{counted(count, 'node')} fit for {role}"
    d.note(reasons.NODES_CHECKED, role, message, seconds=d.now - own.began)
    starting.start_world(d, role)
