"""What a round of checks found: nodes that passed are used, bad ones are left, doubts go to a second round."""

from __future__ import annotations

from dljob.master import checks, limits, nodes, starting
from dljob.master.draft import Draft
from dljob.master.events import NodesChecked
from dljob.master.evolve import evolve
from dljob.master.pairing import RoleCheck, Team, convicted, failed, second_round, suspect, unfit
from dljob.telemetry import reasons


def checked(d: Draft, event: NodesChecked) -> None:
    """A round came to its end; an answer that is late, or about places that were left meanwhile, tells nothing."""
    own, role = d.checks.get(event.role), event.role
    if own is None or not own.round or own.number != event.number or not d.phase.active:
        return
    was, own = own.round, evolve(own, round=0)
    if checks.places_of(d, role) != own.places:
        d.checks = d.checks.set(role, own)
        starting.start_world(d, role)
        return
    own, found = _learned(d, event, own)
    everybody = checks.nodes_of(own.places)
    open_ = tuple(node for node in everybody if node not in own.proven and node not in found)
    if was == 1 and any(node in team for team in own.failures for node in open_):
        teams = second_round(open_, tuple(node for node in everybody if node in own.proven), own.failures)
        if teams:
            checks.ask(d, role, evolve(own, round=2), (), teams)
            return
    _ended(d, role, own, found, open_)


def _learned(d: Draft, event: NodesChecked, own: RoleCheck) -> tuple[RoleCheck, dict[str, str]]:
    """What is known after the answer, and the nodes that are bad, with the words for it."""
    known = {node for _, node, _ in own.speeds}
    fresh = tuple((f.shape, f.node, f.gflops) for f in event.nodes if f.gflops and f.node not in known)
    own = evolve(own, speeds=own.speeds + fresh)
    found = {f.node: why for f in event.nodes if (why := unfit(f, own.speeds))}
    proven = dict.fromkeys(own.proven)
    for facts in event.nodes:
        if facts.unmade:
            d.note(reasons.CHECK_NOT_MADE, f"node/{facts.node}", facts.unmade)
            proven[facts.node] = None
    passing = [team.gbytes_s for team in event.teams if not team.trouble and not team.unmade]
    said = dict[Team, str]()
    for team in event.teams:
        others = [*own.paces, *passing]
        if team.gbytes_s in others:
            others.remove(team.gbytes_s)
        if team.unmade:
            d.note(reasons.CHECK_NOT_MADE, event.role, f"all-reduce of {', '.join(team.nodes)}: {team.unmade}")
        elif why := failed(team, others):
            said[team.nodes] = why
            continue
        proven |= dict.fromkeys(team.nodes)
    good = tuple(node for node in proven if node not in found)
    failures = own.failures + tuple(team for team in said if team not in own.failures)
    guilty = convicted(failures, good)
    for node, team in guilty.items():
        if node in checks.nodes_of(own.places):
            found.setdefault(node, f"{said.get(team, 'an all-reduce failed')}, with {_others(team, node)}, proven good")
    paces = (*own.paces, *(t.gbytes_s for t in event.teams if t.nodes not in said and t.gbytes_s))
    bad = tuple(dict.fromkeys((*own.bad, *guilty)))
    return evolve(own, proven=good, bad=bad, failures=failures, paces=paces[-limits.CHECK_PACES :]), found


def _others(team: Team, node: str) -> str:
    return " and ".join(other for other in team if other != node)


def _ended(d: Draft, role: str, own: RoleCheck, found: dict[str, str], open_: Team) -> None:
    """Start where all nodes may be used; else leave the bad ones, or where nobody can be named, who failed most."""
    d.checks = d.checks.set(role, evolve(own, bad=tuple(dict.fromkeys((*own.bad, *found)))))
    if not found:
        worst, companions = suspect(open_, own.failures)
        if not worst:
            _passed(d, role)
            return
        doubt = "one of them is bad, and no other node was there to tell which"
        found = {worst: f"an all-reduce with {' and '.join(companions)} failed; {doubt}"}
    nodes.leave_bad(d, {node: f"before {role} started: {why}" for node, why in found.items()})


def _passed(d: Draft, role: str) -> None:
    own, everybody = d.checks[role], checks.nodes_of(d.checks[role].places)
    proven = tuple(dict.fromkeys((*own.proven, *everybody)))
    d.checks = d.checks.set(role, evolve(own, proven=proven))
    count = len(everybody)
    message = f"{count} node{'s' if count > 1 else ''} fit for {role}"
    d.note(reasons.NODES_CHECKED, role, message, seconds=d.now - own.began)
    starting.start_world(d, role)
