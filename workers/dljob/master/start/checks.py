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


def must_wait_for_check(tx: StateTransaction, role: str) -> bool:
    """Whether a role, whose hosts are all ready, must wait for a check of its nodes. Orders the check if none runs."""
    if not tx.facts(role).plan.pre_check:
        return False
    places, check = places_of(tx, role), tx.checks.get(role, RoleCheck())
    if check.round and check.places == places:
        return True  # the round is under way
    nodes = nodes_of(places)
    proven_nodes = frozenset(check.proven)
    unproven_nodes = tuple(node for node in nodes if node not in proven_nodes)
    if not unproven_nodes:
        return False
    teams = first_round(unproven_nodes, tuple(node for node in nodes if node in proven_nodes), check.failures)
    order_round(tx, role, evolve(check, round=1, began=tx.now, places=places), unproven_nodes, teams)
    return True


def order_round(tx: StateTransaction, role: str, check: RoleCheck, nodes: Team, teams: tuple[Team, ...]) -> None:
    """Order a round for these nodes, and the other members of these teams."""
    all_nodes = dict.fromkeys((*nodes, *(node for team in teams for node in team)))
    check = evolve(check, number=check.number + 1, nodes=tuple(all_nodes), teams=teams)
    tx.checks = tx.checks.set(role, check)
    tx.do(round_order(tx, role, check))


def round_order(tx: StateTransaction, role: str, check: RoleCheck) -> CheckNodes:
    """Return the order for the present round, with the role's whole share of each node: memory and devices."""
    facts = tx.facts(role)
    # The checker runs in one reservation of the role on the node: the first one, hence the reversed order.
    reservation_of = {node: (unit, token) for unit, token, node in reversed(check.places)}
    rank_counts, devices = Counter[str](), dict[str, dict[str, dict[str, None]]]()
    for index in range(facts.host_count):
        host = tx.hosts[HostId(role, index)]
        rank_counts[host.node] += facts.ranks_per_host
        for resource, ids in host.devices:
            devices.setdefault(host.node, {}).setdefault(resource, {}).update(dict.fromkeys(ids))
    # Each rank's process exists already and has taken a part of the memory that it will need.
    memory = max(0, dict(facts.plan.per_rank).get("memory", 0) // GRAIN - limits.CHECK_TAKEN_BYTES)
    places = tuple(
        CheckPlace(
            node, *reservation_of[node], memory * rank_counts[node],
            tuple((resource, tuple(ids)) for resource, ids in sorted(devices.get(node, {}).items())), name,
        )
        for node, name in zip(check.nodes, tx.node_names(check.nodes), strict=True)
    )  # fmt: skip
    return CheckNodes(role, check.number, places, check.teams)


def reissue_rounds(tx: StateTransaction) -> Iterator[CheckNodes]:
    """Yield the rounds that a new epoch orders again."""
    for role, check in sorted(tx.checks.items()):
        # A round about places that were left since is not repeated: `start_world` orders another one.
        if check.round and check.places == places_of(tx, role):
            yield round_order(tx, role, check)


def places_of(tx: StateTransaction, role: str) -> Places:
    """Return the places of a role's groups, as (unit, token, node) in the order of the groups."""
    facts = tx.facts(role)
    names = (f"{facts.series}/{group}" for group in facts.groups)
    return tuple((name, tx.units[name].token, tx.units[name].node) for name in names)


def nodes_of(places: Places) -> Team:
    """Return the nodes of these places, each once."""
    return tuple(dict.fromkeys(node for _, _, node in places))


def is_barred(tx: StateTransaction, node: str) -> bool:
    """Whether an excluded node must not be used even as a last resort, because of its check.

    A certainly bad node must not. A node that failed only together with another unproven one may be tried again beside
    nodes that it has not failed with.
    """
    if not tx.exclusions[node].check:
        return False
    for role, check in tx.checks.items():
        # It failed, but is not proven bad: it may do beside a node that it has not failed with.
        if node not in check.bad and any(node in team for team in check.failures):
            names = (f"{tx.facts(role).series}/{group}" for group in tx.facts(role).groups)
            other_nodes = {tx.units[name].node for name in names if tx.units[name].phase is UnitPhase.HELD} - {node}
            if any(not failed_together(check.failures, node, other_node) for other_node in other_nodes):
                return False
    return True


def forget_results(tx: StateTransaction, node: str) -> None:
    """Forget the results of a node whose exclusion is over: it is checked again like an unknown one."""
    for role, check in tx.checks.items():
        if node in check.bad or any(node in team for team in check.failures):
            failures = tuple(team for team in check.failures if node not in team)
            bad = tuple(bad_node for bad_node in check.bad if bad_node != node)
            speeds = tuple(speed for speed in check.speeds if speed[1] != node)
            tx.checks = tx.checks.set(role, evolve(check, failures=failures, bad=bad, speeds=speeds))


def describe_excluded(tx: StateTransaction) -> str:
    """Describe the nodes excluded for a failed check, for the message why there is no room; empty: there are none."""
    failed_checks = {name: exclusion.check for name, exclusion in sorted(tx.exclusions.items()) if exclusion.check}
    failed_names = [f"{name} ({check})" for name, check in failed_checks.items()]
    more = f" and {len(failed_names) - 3} more" if len(failed_names) > 3 else ""
    return f"; excluded: {', '.join(failed_names[:3])}{more}" if failed_names else ""
