"""Orders of node checks before a role's ranks start: when a check is due, and which nodes it covers.

A torch world with `comm.preCheck` starts only on nodes that passed a check: at first all of them are checked, later
only new ones. A restart on nodes that passed waits for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dljob.master.state import limits
from dljob.master.state.actions import CheckNodes, CheckPlace
from dljob.master.state.evolve import evolve
from dljob.master.state.pairing import RoleCheck, Team, failed_together, first_round
from dljob.master.state.state import UnitPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import HostId
from dljob.plan.model import GRAIN

Places = tuple[tuple[str, int, str], ...]


def pending(d: StateTransaction, role: str) -> bool:
    """Whether a role, whose hosts are all ready, must wait for a check of its nodes. Orders the check if none runs."""
    if not d.facts(role).plan.pre_check:
        return False
    places, own = places_of(d, role), d.checks.get(role, RoleCheck())
    if own.round and own.places == places:
        return True  # the round is under way
    nodes = nodes_of(places)
    known = frozenset(own.proven)
    fresh = tuple(node for node in nodes if node not in known)
    if not fresh:
        return False
    teams = first_round(fresh, tuple(node for node in nodes if node in known), own.failures)
    ask(d, role, evolve(own, round=1, began=d.now, places=places), fresh, teams)
    return True


def ask(d: StateTransaction, role: str, own: RoleCheck, nodes: Team, teams: tuple[Team, ...]) -> None:
    """Order a round for these nodes, and the other members of these teams."""
    whole = dict.fromkeys((*nodes, *(node for team in teams for node in team)))
    own = evolve(own, number=own.number + 1, nodes=tuple(whole), teams=teams)
    d.checks = d.checks.set(role, own)
    d.do(order(d, role, own))


def order(d: StateTransaction, role: str, own: RoleCheck) -> CheckNodes:
    """Return the order for the present round, with the role's whole share of each node: memory and devices."""
    facts = d.facts(role)
    # The checker runs in one reservation of the role on the node: the first one, hence the reversed order.
    where = {node: (unit, token) for unit, token, node in reversed(own.places)}
    ranks, devices = Counter[str](), dict[str, dict[str, dict[str, None]]]()
    for index in range(facts.host_count):
        host = d.hosts[HostId(role, index)]
        ranks[host.node] += facts.ranks_per_host
        for resource, ids in host.devices:
            devices.setdefault(host.node, {}).setdefault(resource, {}).update(dict.fromkeys(ids))
    # Each rank's process exists already and has taken a part of the memory that it will need.
    memory = max(0, dict(facts.plan.per_rank).get("memory", 0) // GRAIN - limits.CHECK_TAKEN_BYTES)
    places = tuple(
        CheckPlace(
            node, *where[node], memory * ranks[node],
            tuple((resource, tuple(ids)) for resource, ids in sorted(devices.get(node, {}).items())), name,
        )
        for node, name in zip(own.nodes, d.node_names(own.nodes), strict=True)
    )  # fmt: skip
    return CheckNodes(role, own.number, places, own.teams)


def reissue_rounds(d: StateTransaction) -> Iterator[CheckNodes]:
    """Yield the rounds that a new epoch orders again."""
    for role, own in sorted(d.checks.items()):
        # A round about places that were left since is not repeated: `start_world` orders another one.
        if own.round and own.places == places_of(d, role):
            yield order(d, role, own)


def places_of(d: StateTransaction, role: str) -> Places:
    """Return the places of a role's groups, as (unit, token, node) in the order of the groups."""
    facts = d.facts(role)
    names = (f"{facts.series}/{group}" for group in facts.groups)
    return tuple((name, d.units[name].token, d.units[name].node) for name in names)


def nodes_of(places: Places) -> Team:
    """Return the nodes of these places, each once."""
    return tuple(dict.fromkeys(node for _, _, node in places))


def barred(d: StateTransaction, node: str) -> bool:
    """Whether an excluded node must not be used even as a last resort, because of its check.

    A certainly bad node must not. A node that failed only together with another unproven one may be tried again beside
    nodes that it has not failed with.
    """
    if not d.exclusions[node].check:
        return False
    for role, own in d.checks.items():
        # It failed, but is not proven bad: it may do beside a node that it has not failed with.
        if node not in own.bad and any(node in team for team in own.failures):
            names = (f"{d.facts(role).series}/{group}" for group in d.facts(role).groups)
            mates = {d.units[name].node for name in names if d.units[name].phase is UnitPhase.HELD} - {node}
            if any(not failed_together(own.failures, node, mate) for mate in mates):
                return False
    return True


def forget(d: StateTransaction, node: str) -> None:
    """Forget the results of a node whose exclusion is over: it is checked again like an unknown one."""
    for role, own in d.checks.items():
        if node in own.bad or any(node in team for team in own.failures):
            failures = tuple(team for team in own.failures if node not in team)
            bad = tuple(other for other in own.bad if other != node)
            speeds = tuple(speed for speed in own.speeds if speed[1] != node)
            d.checks = d.checks.set(role, evolve(own, failures=failures, bad=bad, speeds=speeds))


def describe_excluded(d: StateTransaction) -> str:
    """Describe the nodes excluded for a failed check, for the message why there is no room; empty: there are none."""
    failed = [f"{name} ({own.check})" for name, own in sorted(d.exclusions.items()) if own.check]
    more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
    return f"; excluded: {', '.join(failed[:3])}{more}" if failed else ""
