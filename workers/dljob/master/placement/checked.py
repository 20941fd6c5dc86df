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
    find_culprits,
    master_clock_error,
    median_speeds,
    most_suspicious_node,
    second_round,
    team_failure,
    unfit_reason,
    without_shared_failures,
    without_shared_lateness,
)
from dljob.master.state.transaction import StateTransaction
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted


def handle_checked_nodes(tx: StateTransaction, event: NodesChecked) -> None:
    """Handle the result of a round of checks. A stale one, or one about reservations given up since, is ignored."""
    check, role = tx.checks.get(event.role), event.role
    if check is None or not check.round or check.number != event.number or not tx.phase.active:
        return
    finished_round, check = check.round, evolve(check, round=0)
    # Units moved during the round: `start_world` orders a new one where nodes are still unknown.
    if checks.places_of(tx, role) != check.places:
        tx.checks = tx.checks.set(role, check)
        starting.start_world(tx, role)
        return
    check, bad_nodes = _merge_results(tx, event, check)
    all_nodes, good_nodes = checks.nodes_of(check.places), frozenset(check.proven)
    undecided_nodes = tuple(node for node in all_nodes if node not in good_nodes and node not in bad_nodes)
    # A failed team of two unknown nodes says that one is bad, but not which: the second round tells them apart.
    doubtful_nodes = {node for team in check.failures for node in team}
    if finished_round == 1 and not doubtful_nodes.isdisjoint(undecided_nodes):
        teams = second_round(undecided_nodes, tuple(node for node in all_nodes if node in good_nodes), check.failures)
        if teams:
            checks.order_round(tx, role, evolve(check, round=2), (), teams)
            return
    # There is no third round: if a doubt remains, the most suspect node is excluded.
    _finish_check(tx, role, check, bad_nodes, undecided_nodes)


def _merge_results(tx: StateTransaction, event: NodesChecked, check: RoleCheck) -> tuple[RoleCheck, dict[str, str]]:
    """Return the check results including this answer, and the bad nodes with the reason of each."""
    # A trouble that most nodes share is no fault of a single node.
    teams = without_shared_failures(event.teams, frozenset(check.proven))
    event = evolve(event, nodes=without_shared_lateness(event.nodes), teams=teams)
    measured_nodes = {node for _, node, _ in check.speeds}
    measured = (facts for facts in event.nodes if facts.gflops and facts.node not in measured_nodes)
    speeds = check.speeds + tuple((facts.shape, facts.node, facts.gflops) for facts in measured)
    usual_speeds, clock_lead = median_speeds(speeds), master_clock_error(event.nodes)
    unfit = ((facts.node, unfit_reason(facts, usual_speeds, clock_lead)) for facts in event.nodes)
    bad_nodes = {node: reason for node, reason in unfit if reason}
    # A node that could not be checked counts as proven: a bug of the check must not stop a job.
    proven = dict.fromkeys((*check.proven, *(facts.node for facts in event.nodes if facts.unmade)))
    _report_unchecked(tx, event, clock_lead)
    failed_teams, paces = _failed_teams(event, check)
    proven |= {node: None for team in event.teams if team.nodes not in failed_teams for node in team.nodes}
    good_nodes = {node: None for node in proven if node not in bad_nodes}
    failures = check.failures + tuple(team for team in failed_teams if team not in check.failures)
    culprits, role_nodes = find_culprits(failures, good_nodes.keys()), set(checks.nodes_of(check.places))
    for node, team in culprits.items():
        # Any other bad node is only remembered, since no unit of the role is there.
        if node in role_nodes:
            others = " and ".join(tx.node_names(member for member in team if member != node))
            bad_nodes.setdefault(node, f"{failed_teams.get(team, 'an all-reduce failed')}, with {others}, proven good")
    all_bad, limit = tuple(dict.fromkeys((*check.bad, *culprits))), limits.CHECK_PACES
    check = evolve(check, proven=tuple(good_nodes), bad=all_bad, failures=failures)
    return evolve(check, speeds=speeds[-limit:], paces=paces[-limit:]), bad_nodes


def _report_unchecked(tx: StateTransaction, event: NodesChecked, clock_lead: float) -> None:
    """Report the checks that could not be made, equal reasons of many nodes or teams in one line."""
    nodes, teams = dict[str, list[str]](), dict[str, list[str]]()
    for facts in event.nodes:
        nodes.setdefault(facts.unmade, []).append(facts.node)
    for team in event.teams:
        teams.setdefault(team.unmade, []).append(", ".join(tx.node_names(team.nodes)))
    for reason, (first, *more) in nodes.items():
        if reason:
            tx.note(reasons.CHECK_NOT_MADE, f"node/{first}", reason + _count_more(len(more), "nodes"))
    for reason, (first, *more) in teams.items():
        if reason:
            words = f"all-reduce of {first}: {reason}{_count_more(len(more), 'teams')}"
            tx.note(reasons.CHECK_NOT_MADE, event.role, words)
    if clock_lead:
        direction = "behind" if clock_lead > 0 else "ahead of"
        words = f"PrimeMaster's clock is {abs(clock_lead):.1f} s {direction} most nodes'"
        words += ", which are compared with each other"
        tx.note(reasons.CHECK_NOT_MADE, "master", f"{words}; set the clock of its machine")


def _count_more(count: int, noun: str) -> str:
    return f" (and {count} more {noun})" if count else ""


def _failed_teams(event: NodesChecked, check: RoleCheck) -> tuple[dict[Team, str], tuple[float, ...]]:
    """Return failed team -> reason, and the bandwidths (GB/s) of teams that passed, earlier rounds included."""
    tried_teams = [team for team in event.teams if not team.unmade]
    paces = (*check.paces, *(team.gbytes_s for team in tried_teams if not team.trouble))
    failed_teams = {team.nodes: reason for team in tried_teams if (reason := team_failure(team, paces))}
    return failed_teams, (*check.paces, *(team.gbytes_s for team in tried_teams if team.nodes not in failed_teams))


def _finish_check(
    tx: StateTransaction, role: str, check: RoleCheck, bad_nodes: dict[str, str], undecided_nodes: Team
) -> None:
    """Start the role if all its nodes may be used; else exclude the bad ones, or the one most suspect."""
    all_nodes, all_bad = checks.nodes_of(check.places), tuple(dict.fromkeys((*check.bad, *bad_nodes)))
    check = evolve(check, bad=all_bad, places=(), nodes=(), teams=())
    tx.checks = tx.checks.set(role, check)
    if not bad_nodes:
        suspect_node, companions = most_suspicious_node(undecided_nodes, check.failures)
        if not suspect_node:
            tx.checks = tx.checks.set(role, evolve(check, proven=tuple(dict.fromkeys((*check.proven, *all_nodes)))))
            message = f"{counted(len(all_nodes), 'node')} fit for {role}"
            tx.note(reasons.NODES_CHECKED, role, message, seconds=tx.now - check.began)
            starting.start_world(tx, role)
            return
        doubt = "one of them is bad, and no other node was there to tell which"
        bad_nodes = {suspect_node: f"an all-reduce with {' and '.join(tx.node_names(companions))} failed; {doubt}"}
    nodes.leave_bad(tx, {node: f"before {role} started: {reason}" for node, reason in bad_nodes.items()})
