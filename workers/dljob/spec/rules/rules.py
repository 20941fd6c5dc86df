"""The rules between fields: those of the CRD's CEL, with the same messages, and those that CEL cannot express."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import cast, get_args

from dljob.spec import cel, variables
from dljob.spec.model import Comm, DLJobSpec, EnvVar, Role
from dljob.spec.policy import Rule
from dljob.spec.rules.annotations import annotation_findings, spoken, written_at
from dljob.spec.rules.auto import AUTO_RULES
from dljob.spec.rules.collectives import COLLECTIVE_RULES
from dljob.spec.rules.coupled import COUPLED_RULES
from dljob.spec.rules.elastic import ELASTIC_RULES
from dljob.spec.rules.failure_domains import FAILURE_DOMAIN_RULES
from dljob.spec.rules.findings import ROLE_NAMES, Check, Finding, listed, one_each, other_role, repeated
from dljob.spec.rules.head import HEAD_RULES
from dljob.spec.rules.interpreters import INTERPRETER_RULES
from dljob.spec.rules.machines import MACHINE_RULES
from dljob.spec.rules.memory import MEMORY_RULES
from dljob.spec.rules.outside import OUTSIDE_RULES
from dljob.spec.rules.quota import QUOTA_RULES
from dljob.spec.rules.reference import REFERENCE_RULES
from dljob.spec.rules.rejoin import REJOIN_RULES
from dljob.spec.rules.resources import RESOURCE_RULES
from dljob.spec.rules.serving import SERVING_RULES
from dljob.spec.rules.templates import TEMPLATE_RULES
from dljob.spec.rules.tensorflow import TENSORFLOW_RULES
from dljob.spec.rules.weights import WEIGHT_RULES
from dljob.spec.rules.witnesses import WITNESS_RULES
from dljob.spec.text.tree import Loc
from dljob.spec.text.words import one_of
from dljob.spec.versions import RAY
from dljob.telemetry.wording import counted

RESERVED_ROLES = ("job", "master", "node")

# The actions from the mildest to the strongest: `escalateTo` must be stronger than `action`.
_ORDER = {
    name: rank
    for rank, name in enumerate(
        (
            "Ignore",
            "RestartInProcess",
            "RestartProcess",
            "RestartRoleGroup",
            "RestartRole",
            "ReplaceNode",
            "RestartJob",
            "Fail",
        )
    )
}


def findings(spec: DLJobSpec) -> tuple[Finding, ...]:
    """Return every broken rule of a spec whose single fields are valid; valid annotations count as typed fields."""
    # Invalid annotations have no typed form, so the other rules then check the spec without them.
    wrong = tuple(annotation_findings(spec))
    typed_spec = spec if wrong else spoken(spec)
    rule_findings = (finding for check in RULES for finding in check(typed_spec))
    return (*wrong, *(replace(finding, loc=written_at(spec, typed_spec, finding.loc)) for finding in rule_findings))


# Targets of commands are roles, `job`, `master` and nodes: a role of such a name would be ambiguous.
def _role_names(spec: DLJobSpec) -> Iterator[Finding]:
    yield from one_each(("spec", "roles"), [role.name for role in spec.roles], "roles")
    for index, role in enumerate(spec.roles):
        if role.name in RESERVED_ROLES:
            words = f"{cel.RESERVED_ROLE.message}: commands use {role.name} for something else"
            yield Finding(("spec", "roles", index, "name"), words, f"call the role {role.name}-role, for example")


def _drivers(spec: DLJobSpec) -> Iterator[Finding]:
    if not any(role.driver for role in spec.roles):
        reads = tuple(("spec", "roles", index, "driver") for index in range(len(spec.roles)))
        yield Finding(
            ("spec", "roles"), cel.DRIVER.message, "the job ends with its drivers: set driver: true on one", reads
        )


def _entrypoints(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role in enumerate(spec.roles):
        loc: Loc = ("spec", "roles", index, "entrypoint")
        entry = role.entrypoint
        kinds = [name for name in ("class", "module", "command") if getattr(entry, name.replace("class", "class_"))]
        if len(kinds) != 1:
            yield Finding(loc, f"{cel.ENTRYPOINT.message}; here {listed(kinds) if kinds else 'none'}")
        if entry.command and not entry.command[0].strip():
            yield Finding((*loc, "command", 0), "the program is empty", "the first item of command is the program")


def _groups(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role in enumerate(spec.roles):
        if role.replicas % role.replicas_per_group:
            loc: Loc = ("spec", "roles", index)
            ranks = counted(role.replicas, "rank")
            words = f"{cel.GROUP_SIZE.message}: {ranks} cannot form whole groups of {role.replicas_per_group}"
            reads = ((*loc, "replicas"), (*loc, "replicasPerGroup"))
            # The next number of ranks that forms whole groups.
            more = -(-role.replicas // role.replicas_per_group) * role.replicas_per_group
            yield Finding(reads[1], words, f"replicas: {more} would do", reads)


# Without a torch world `comm` would have no effect, and users would not notice.
def _comm(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role in enumerate(spec.roles):
        if role.type != "Elastic" and role.comm != Comm():
            loc: Loc = ("spec", "roles", index)
            words = f"{cel.COMM_ELASTIC.message}: {role.name} is {role.type}, whose ranks have no process group"
            yield Finding(
                (*loc, "comm"), words, "set type: Elastic, or leave comm out", ((*loc, "type"), (*loc, "comm"))
            )
        elif role.comm.sub_master and role.comm.backend not in ("Auto", "None"):
            loc = ("spec", "roles", index, "comm")
            words = f"{role.name} has the SubMaster {role.comm.sub_master} in the place of torch's store"
            hint = "leave backend out, or subMaster"
            yield Finding((*loc, "backend"), words, hint, ((*loc, "subMaster"), (*loc, "backend")))


# A role that waits for itself, or for a role in its own cycle, would never start.
def _depends_on(spec: DLJobSpec) -> Iterator[Finding]:
    names = [role.name for role in spec.roles]
    for index, role in enumerate(spec.roles):
        loc: Loc = ("spec", "roles", index, "dependsOn")
        for at, _, name in repeated([dependency.role for dependency in role.depends_on]):
            yield Finding((*loc, at, "role"), f"{name} is listed twice", "keep one")
        for at, dependency in enumerate(role.depends_on):
            if dependency.role not in names:
                words = f"{cel.DEPENDS_ON.message}: there is no role {dependency.role}"
                hint = other_role(spec, role, dependency.role)
                yield Finding((*loc, at, "role"), words, hint, ((*loc, at, "role"), ROLE_NAMES))
            elif dependency.role == role.name:
                yield Finding((*loc, at, "role"), f"{cel.DEPENDS_ON.message}: {role.name} waits for itself")


def _cycles(spec: DLJobSpec) -> Iterator[Finding]:
    """Yield each cycle of two or more roles once, from its first role in the file."""
    waits = {role.name: [d.role for d in role.depends_on] for role in spec.roles}
    # A cycle is found from each of its roles; its set of names is the same.
    known_cycles: set[frozenset[str]] = set()
    for index, role in enumerate(spec.roles):
        cycle = _way_back(waits, role.name)
        # `_depends_on` reports a role that waits for itself.
        if len(cycle) > 1 and frozenset(cycle) not in known_cycles:
            known_cycles.add(frozenset(cycle))
            at = next(at for at, d in enumerate(role.depends_on) if d.role == cycle[1])
            words = f"roles wait for each other: {' -> '.join((*cycle, role.name))}"
            reads = tuple(("spec", "roles", i, "dependsOn") for i in range(len(spec.roles)))
            yield Finding(("spec", "roles", index, "dependsOn", at, "role"), words, "take one of them out", reads)


def _way_back(waits: Mapping[str, list[str]], start: str) -> list[str]:
    """Return the shortest cycle through `start`, without the return to it; empty when there is none."""
    # Breadth first, so that the first way back is a shortest one.
    ways = [[start]]
    visited: set[str] = set()
    # The list is a queue, which grows while it is walked.
    for way in ways:
        for name in waits.get(way[-1], []):
            if name == start:
                return way
            if name not in visited:
                visited.add(name)
                ways.append([*way, name])
    return []


def _env(spec: DLJobSpec) -> Iterator[Finding]:
    roles = list(enumerate(spec.roles))
    env_vars = spec.runtime_env.get("env_vars")
    for name in cast("dict[str, object]", env_vars) if isinstance(env_vars, dict) else ():
        yield from _set_by_dljob(("spec", "runtimeEnv", "env_vars", name), name, roles)
    lists: list[tuple[Loc, tuple[EnvVar, ...], list[tuple[int, Role]]]] = [(("spec", "env"), spec.env, roles)]
    lists += [(("spec", "roles", index, "env"), role.env, [(index, role)]) for index, role in roles]
    for loc, env, having in lists:
        yield from one_each(loc, [variable.name for variable in env], "variables")
        for at, variable in enumerate(env):
            yield from _set_by_dljob((*loc, at, "name"), variable.name, having)


# Ranks get dljob's value, so that one of the user's would be ignored.
def _set_by_dljob(loc: Loc, name: str, roles: list[tuple[int, Role]]) -> Iterator[Finding]:
    hint = "take it out, or choose another name"
    if variables.is_reserved(name):
        yield Finding(loc, f"{name} is set by dljob, as are all variables whose names begin with DLJOB_", hint)
    for index, role in roles:
        meets = role.comm.backend != "None" or role.comm.sub_master
        names = (*get_args(variables.TorchVariable), *(get_args(variables.StoreVariable) if meets else ()))
        if role.type == "Elastic" and name in names:
            reads = (loc, *(("spec", "roles", index, key) for key in ("type", "comm")))
            words = f"{name} is set by dljob in each rank of {role.name}, as torchrun does: it is Elastic"
            yield Finding(loc, words, hint, reads)
            return


def _rules(spec: DLJobSpec) -> Iterator[Finding]:
    loc: Loc = ("spec", "faultTolerance", "rules")
    rules = spec.fault_tolerance.rules
    yield from one_each(loc, [rule.name for rule in rules], "rules")
    causes = [cause.name for cause in spec.fault_tolerance.causes]
    yield from one_each(("spec", "faultTolerance", "causes"), causes, "causes")
    names = [role.name for role in spec.roles]
    for index, rule in enumerate(rules):
        rule_loc = (*loc, index)
        for at, name in enumerate(rule.roles):
            if name not in names:
                reads = ((*rule_loc, "roles", at), ROLE_NAMES)
                yield Finding(reads[0], f"there is no role {name}", one_of(name, names), reads)
        for key, items in (("roles", rule.roles), ("onReasons", rule.on_reasons), ("onExitCodes", rule.on_exit_codes)):
            for at, _, item in repeated(items):
                yield Finding((*rule_loc, key, at), f"{item} is listed twice", "keep one")
        yield from _escalation(rule_loc, rule)


def _escalation(loc: Loc, rule: Rule) -> Iterator[Finding]:
    if rule.escalate_to is None:
        return
    escalate_loc, action, attempts = (*loc, "escalateTo"), (*loc, "action"), (*loc, "maxAttempts")
    if rule.max_attempts is None:
        yield Finding(escalate_loc, cel.ESCALATION.message, "add maxAttempts", (attempts, escalate_loc))
    if _ORDER[rule.escalate_to] <= _ORDER[rule.action]:
        words = f"escalateTo must be above the action: {rule.escalate_to} is not above {rule.action}"
        above = [name for name in _ORDER if _ORDER[name] > _ORDER[rule.action]]
        hint = f"one of {', '.join(above)}" if above else "leave escalateTo and maxAttempts out"
        yield Finding(escalate_loc, words, hint, (action, escalate_loc))


def _backoff(spec: DLJobSpec) -> Iterator[Finding]:
    backoff = spec.fault_tolerance.backoff
    if backoff.initial_seconds > backoff.max_seconds:
        loc: Loc = ("spec", "faultTolerance", "backoff")
        words = f"the first wait of {backoff.initial_seconds} s is longer than maxSeconds, {backoff.max_seconds} s"
        reads = ((*loc, "initialSeconds"), (*loc, "maxSeconds"))
        yield Finding(reads[0], words, reads=reads)


def _metrics(spec: DLJobSpec) -> Iterator[Finding]:
    for at, _, name in repeated(spec.progress_metrics):
        yield Finding(("spec", "progressMetrics", at), f"{name} is listed twice", "keep one")


# Refused here, and not by the launcher: until it runs, the job would pay for machines and images.
def _ray_version(spec: DLJobSpec) -> Iterator[Finding]:
    if spec.ray_version and not spec.ray_version.startswith(f"{RAY}."):
        hint = f"write {RAY}.0, or the patch version in the image"
        yield Finding(("spec", "rayVersion"), f"this dljob runs on Ray {RAY}, not on {spec.ray_version}", hint)


RULES: tuple[Check, ...] = (
    _role_names,
    _drivers,
    _entrypoints,
    _groups,
    _comm,
    _depends_on,
    _cycles,
    _env,
    _rules,
    _backoff,
    _metrics,
    _ray_version,
    *ELASTIC_RULES,
    *MACHINE_RULES,
    *OUTSIDE_RULES,
    *HEAD_RULES,
    *TEMPLATE_RULES,
    *REFERENCE_RULES,
    *REJOIN_RULES,
    *COUPLED_RULES,
    *INTERPRETER_RULES,
    *MEMORY_RULES,
    *RESOURCE_RULES,
    *AUTO_RULES,
    *FAILURE_DOMAIN_RULES,
    *WITNESS_RULES,
    *COLLECTIVE_RULES,
    *QUOTA_RULES,
    *SERVING_RULES,
    *WEIGHT_RULES,
    *TENSORFLOW_RULES,
)
"""All rules in the order of their checks; the loader sorts the findings by their place in the file."""
