"""Tables of `dljob plan`: the machine of each rank, computed without a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from dljob.cli.output import aligned
from dljob.cli.plan_drawing import draw
from dljob.errors import PlacementError
from dljob.master.start.assign import Refusal, assign, spare_nodes
from dljob.master.state.views import NodeView
from dljob.plan.domains import Choice
from dljob.plan.model import LEAST, NODE_GROUP_LABEL, Amount, JobPlan, Resources, Series, Unit, add_up
from dljob.plan.role import RolePlan
from dljob.plan.serving import ProbePlan, WeightsPlan, offered
from dljob.plan.witnesses import WitnessPlan
from dljob.plan.words import ranges, resources_text
from dljob.reconcile.state.names import service as service_name
from dljob.spec.quantity import show, show_memory
from dljob.spec.rules.tensorflow import NO_AUTHENTICATION, opening
from dljob.spec.standing import preview_standby
from dljob.spec.text.emit import to_yaml
from dljob.telemetry.wording import counted

PlanOutput = Literal["table", "json", "yaml", "svg"]
_NODE_NAME_LENGTH = 20

Rows = list[tuple[str, ...]]


def render_plan(plan: JobPlan, nodes: Iterable[NodeView], output: PlanOutput) -> str:
    """Render the plan on these nodes as text that ends in a newline.

    Raises:
        PlacementError: the units do not fit on the nodes.
    """
    # The head carries no units.
    layout = _Layout(plan, tuple(node for node in nodes if not node.head))
    if output == "table":
        return layout.table()
    data = layout.data()
    if output == "svg":
        return draw(data)
    return to_yaml(data) if output == "yaml" else json.dumps(data, indent=2, ensure_ascii=False) + "\n"


class _Layout:
    """A plan with a node assigned to each unit."""

    def __init__(self, plan: JobPlan, nodes: Sequence[NodeView]) -> None:
        units = list(plan.units.values())
        # PrimeMaster's own function, so that the preview places units as the job will.
        assignment = assign(units, nodes, reserve_nodes=spare_nodes(plan))
        if isinstance(assignment, Refusal):
            raise PlacementError(f"job {plan.name} does not fit: {assignment.reason}", hint=_hint(assignment))
        self.plan = plan
        self.nodes = nodes
        self.units = units
        self.node_of = assignment.nodes
        self.domains = assignment.domains
        self.on_node: dict[str, list[Unit]] = {node.id: [] for node in nodes}
        for unit in units:
            self.on_node[assignment.nodes[unit.name]].append(unit)

    def table(self) -> str:
        """Return tables of roles, units and machines; equal rows are merged into one."""
        plan = self.plan
        ranks = sum(role.replicas for role in plan.roles.values())
        head = (
            f"{plan.name}: {counted(len(plan.roles), 'role')}, {counted(ranks, 'rank')}, "
            f"{counted(len(self.units), 'unit')}, {counted(len(self.nodes), 'machine')}; plan {plan.digest}"
        )
        roles = [("ROLE", "TYPE", "RANKS", "GROUPS", "EACH RANK TAKES", "RESTARTS", "COMM", "RUNS")]
        roles += [_role_row(role) for role in plan.roles.values()]
        units: Rows = [("UNITS", "HOLD", "EACH TAKES")]
        units += [row for series in plan.units.series for row in _unit_rows(series)]
        machines: Rows = [("MACHINES", "GROUP", "CARRY", "LEFT ON EACH"), *self._machine_rows()]
        domains = [f"{domain.series}: {domain.reason}" for domain in self.domains]
        weights = [_weights_row(role.name, role.weights) for role in plan.roles.values() if role.weights]
        if weights:
            loads: Rows = [("WEIGHTS", "CHANNELS", "MAX LAG", "STAY READY", "LOAD", "VERIFY"), *weights]
            domains = [*aligned(loads), *([""] if domains else []), *domains]
        servers: Rows = [_server_row(plan.name, role) for role in plan.roles.values() if role.ports]
        if servers:
            table: Rows = [("SERVERS", "PORTS", "PROBES", "DRAIN", "SERVICE ON KUBERNETES"), *servers]
            domains = [*aligned(table), *([""] if domains else []), *domains]
        rows: Rows
        if tasks := [f"{role.name} ({role.tf})" for role in plan.roles.values() if role.tf]:
            rows = [("TF_CONFIG FOR", "NOTE"), (", ".join(tasks), f"{NO_AUTHENTICATION}; {_closed(plan)}")]
            domains = [*aligned(rows), *([""] if domains else []), *domains]
        images: Rows = [(group.name, group.image) for group in plan.node_groups.values() if group.image]
        if images:
            table = [("GROUP", "IMAGE ON KUBERNETES"), *images]
            domains = [*aligned(table), *([""] if domains else []), *domains]
        if plan.witnesses:
            rows = [("WITNESSES", "READ AT", "SAY", "OF A RANK"), *map(_witness_row, plan.witnesses)]
            domains = [*aligned(rows), *([""] if domains else []), *domains]
        tables = ["", *aligned(roles), "", *aligned(units), "", *aligned(machines), ""]
        if plan.standby != "Never":
            head += f"\nstandby of PrimeMaster: {preview_standby(plan.standby)}"
        return "\n".join([head, *tables, *([*domains, ""] if domains else [])])

    def _machine_rows(self) -> Rows:
        """Merge neighbours that carry the same ranks per role and have the same left over into one row."""
        rows: Rows = []
        alike = [self._likeness(node) for node in self.nodes]
        start = 0
        for i, node in enumerate(self.nodes):
            if i + 1 < len(self.nodes) and alike[i + 1] == alike[i]:
                continue
            run = self.nodes[start : i + 1]
            start = i + 1
            carried = _ranks(unit for member in run for unit in self.on_node[member.id])
            texts = [
                f"{role} {ranges(numbers)}" + (f" ({len(numbers) // len(run)} each)" if len(run) > 1 else "")
                for role, numbers in carried.items()
            ]
            rows.append(
                (_names(run), _group(node), ", ".join(texts) or "nothing", resources_text(self._free_resources(node)))
            )
        return rows

    def _likeness(self, node: NodeView) -> tuple[object, ...]:
        # How many ranks of each role, not which: these differ on every machine.
        counts = tuple((role, len(numbers)) for role, numbers in _ranks(self.on_node[node.id]).items())
        return _group(node), counts, self._free_resources(node)

    def _free_resources(self, node: NodeView) -> Resources:
        bundles = [bundle.resources for unit in self.on_node[node.id] for bundle in unit.bundles]
        # LEAST is no demand: its ranks ask for nothing, but Ray refuses an empty bundle.
        demand = add_up(*(resources for resources in bundles if resources != LEAST))
        # Resources that a node does not state are not limited on it.
        stated = {name for name, _ in node.free}
        return add_up(node.free, tuple((name, -amount) for name, amount in demand if name in stated))

    def data(self) -> dict[str, Any]:
        """Return the whole layout as JSON data; amounts in the spec's spelling, ranks as ranges."""
        return {
            "name": self.plan.name,
            "digest": self.plan.digest,
            "masterStandby": self.plan.standby,
            "roles": [_role_data(role) for role in self.plan.roles.values()],
            "units": [_unit_data(unit, self.node_of[unit.name]) for unit in self.units],
            **({"domains": [_domain_data(choice) for choice in self.domains]} if self.domains else {}),
            "nodeGroups": [
                {
                    "name": group.name,
                    "replicas": group.replicas,
                    "spares": group.spares,
                    "derived": group.derived,
                    "resources": _amounts(group.resources),
                    "labels": dict(group.labels),
                    **({"image": group.image} if group.image else {}),
                }
                for group in self.plan.node_groups.values()
            ],
            "nodes": [
                {
                    "id": node.id,
                    "group": dict(node.labels).get(NODE_GROUP_LABEL),
                    "units": [unit.name for unit in self.on_node[node.id]],
                    "ranks": {role: ranges(numbers) for role, numbers in _ranks(self.on_node[node.id]).items()},
                    "left": _amounts(self._free_resources(node)),
                }
                for node in self.nodes
            ],
        }


def _with(role: RolePlan) -> dict[str, list[str]]:
    """Return the roles that restart with a role, where there are any."""
    return {"with": list(role.restart_with)} if role.restart_with else {}


def _python(role: RolePlan) -> dict[str, str]:
    """Return the interpreter of a role, where it has one of its own."""
    return {"python": role.python} if role.python else {}


def _role_row(role: RolePlan) -> tuple[str, ...]:
    kind = ("Elastic" if role.elastic else "Actor") + (", driver" if role.driver else "")
    restarts = f"{role.restart_level} x {role.max_restarts}"
    if role.restart_with:
        restarts += f", with {', '.join(role.restart_with)}"
    groups = f"{role.groups} of {role.group_size}"
    ranks = _range(0, role.replicas)
    takes = resources_text(role.per_rank) if role.quota is None else f"quota: {resources_text(role.quota)}"
    return (
        role.name,
        kind,
        ranks,
        groups,
        takes,
        restarts,
        role.comm_backend or role.sub_master or "-",
        " ".join((*([role.python] if role.python else ()), *role.entrypoint)),
    )


def _witness_row(witness: WitnessPlan) -> tuple[str, str, str, str]:
    if witness.dump and not witness.metric:
        return witness.name, f"127.0.0.1:{witness.dump.port}{witness.dump.path}", "-", "dump at a hang"
    effect = f"{witness.means}, {'acts' if witness.act else 'evidence only'}"
    dump = ", dump at a hang" if witness.dump else ""
    return witness.name, f"127.0.0.1:{witness.port}{witness.path}", witness.condition, effect + dump


def _server_row(job: str, role: RolePlan) -> tuple[str, ...]:
    probes = {"startup": role.startup, "readiness": role.readiness, "liveness": role.liveness}
    ports = ", ".join(f"{name} {number or 'free'}" for name, number in role.ports)
    has = ", ".join(name for name, probe in probes.items() if probe) or "-"
    service = "-"
    if role.service:
        numbers = ",".join(str(number) for number in offered(role.ports).values())
        service = f"{service_name(job, role.name)}:{numbers}"
    return role.name, ports, has, f"{role.drain.timeout_s} s" if role.drain else "-", service


def _closed(plan: JobPlan) -> str:
    """Return whether networkPolicy closes TensorFlow's servers, and if not why."""
    served = [role for role in plan.roles.values() if role.service]
    openings = [opening(role.name, role.tf, [number for _, number in role.ports]) for role in served]
    reasons = [f"{words} ({remedy})" for words, remedy in openings if words]
    return f"networkPolicy does not close them: {'; '.join(reasons)}" if reasons else "networkPolicy closes them"


def _weights_row(role: str, weights: WeightsPlan) -> tuple[str, ...]:
    load = f"{_hook(weights.load)}, within {weights.load.timeout_s} s"
    verify = _hook(weights.verify) if weights.verify else "-"
    return role, ", ".join(weights.channels), str(weights.max_lag), str(weights.min_ready), load, verify


def _hook(hook: ProbePlan) -> str:
    """Return how a rank is told to load, or asked what it holds, in words."""
    if hook.kind == "exec":
        return " ".join(hook.command)[:40]
    return f"{hook.path}()" if hook.kind == "method" else f"{'POST' if hook.kind == 'post' else 'GET'} {hook.path}"


def _unit_rows(series: Series) -> Rows:
    """Return one row for all units of one shape."""
    rows: Rows = []
    for shape in series.shapes:
        ranks_text = ", ".join(f"{m.group_size} {m.role}" for m in series.members if m.role in shape.roles)
        name = f"{series.name}/{_range(shape.first, shape.end - shape.first)}"
        takes = resources_text(series.unit(shape.first).demand)
        also = [
            *(["sharing devices"] if series.shared else []),
            *([f"all in one {series.topology_key}"] if series.topology_key else []),
            *([f"in one {series.preferred_key} if possible"] if series.preferred_key else []),
            *(["a machine each"] if series.spread else []),
        ]
        rows.append((name, f"{ranks_text} ({', '.join(also)})" if also else ranks_text, takes))
    return rows


def _range(first: int, count: int) -> str:
    return f"{first}-{first + count - 1}" if count > 1 else str(first)


def _role_data(role: RolePlan) -> dict[str, Any]:
    kind, *target = role.entrypoint
    return {
        "name": role.name,
        "type": "Elastic" if role.elastic else "Actor",
        "host": role.host.value,
        **_python(role),
        "entrypoint": {kind: list(target) if kind == "command" else target[0]},
        "replicas": role.replicas,
        "replicasPerGroup": role.group_size,
        "groups": role.groups,
        "driver": role.driver,
        "eachRank": _amounts(role.per_rank),
        **({} if role.quota is None else {"quota": _amounts(role.quota)}),
        "dependsOn": [{"role": name, "condition": condition} for name, condition in role.depends_on],
        "restartPolicy": {"level": role.restart_level, "maxRestarts": role.max_restarts, **_with(role)},
        "comm": role.comm_backend,
        **({"ports": [{"name": name, "port": number} for name, number in role.ports]} if role.ports else {}),
        **({"service": offered(role.ports)} if role.service else {}),
        **({"tf": {"task": role.tf}} if role.tf else {}),
    }


def _unit_data(unit: Unit, node: str) -> dict[str, Any]:
    return {
        "name": unit.name,
        "node": node,
        "selector": dict(unit.selector),
        **({"topologyKey": unit.topology_key} if unit.topology_key else {}),
        **({"preferredTopologyKey": unit.preferred_key} if unit.preferred_key else {}),
        **({"spread": True} if unit.spread else {}),
        "bundles": [
            {"resources": _amounts(bundle.resources), "ranks": [f"{role}/{rank}" for role, rank in bundle.ranks]}
            for bundle in unit.bundles
        ],
    }


def _domain_data(choice: Choice) -> dict[str, Any]:
    """Return the domain of a series; `value` is null for a preferred one that it does not get."""
    return {"series": choice.series, "key": choice.key, "value": choice.value or None, "why": choice.reason}


def _ranks(units: Iterable[Unit]) -> dict[str, list[int]]:
    ranks_by_role: dict[str, list[int]] = {}
    for unit in units:
        for bundle in unit.bundles:
            for role, rank in bundle.ranks:
                ranks_by_role.setdefault(role, []).append(rank)
    return {role: sorted(numbers) for role, numbers in sorted(ranks_by_role.items())}


def _amounts(resources: Resources) -> dict[str, str]:
    return {name: _amount(name, amount) for name, amount in resources}


def _amount(name: str, amount: Amount) -> str:
    return show_memory(amount) if name == "memory" else show(amount)


def _group(node: NodeView) -> str:
    return dict(node.labels).get(NODE_GROUP_LABEL, "-")


def _names(run: Sequence[NodeView]) -> str:
    first, last = run[0].id[:_NODE_NAME_LENGTH], run[-1].id[:_NODE_NAME_LENGTH]
    return first if len(run) == 1 else f"{first} .. {last} ({len(run)})"


def _hint(refusal: Refusal) -> str:
    if refusal.never:
        return "it would not fit if these machines were empty either: add machines, or ask for less"
    return "it would fit if these machines were empty: wait for others to end, or add machines"
