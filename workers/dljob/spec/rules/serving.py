"""The rules about ports and probes of roles."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.spec import cel
from dljob.spec.model import DLJobSpec, Probe, Role
from dljob.spec.references import referred
from dljob.spec.rules.findings import NAMES, ROLE_NAMES, Check, Finding, one_each, repeated
from dljob.spec.serving import HttpGet
from dljob.spec.text.tree import Loc
from dljob.spec.text.words import one_of

AGENT_PORTS = {8080: "its metrics", 52365: "its dashboard agent"}
"""Ports that Ray's own agent takes in each pod. Source: KubeRay 1.6.2, controllers/ray/common/pod.go."""


def _ports(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role in enumerate(spec.roles):
        loc: Loc = ("spec", "roles", index, "ports")
        yield from one_each(loc, [port.name for port in role.ports], "ports")
        numbers = [port.port or f"free {at}" for at, port in enumerate(role.ports)]
        for at, first, number in repeated(numbers):
            words = f"{number} is the number of {role.ports[first].name} already"
            yield Finding((*loc, at, "port"), words, "port: 0 takes a free one")
        if role.service and not role.ports:
            yield Finding(
                ("spec", "roles", index, "service"), cel.SERVICE.message, "give the role ports, such as {name: http}"
            )


def port_warnings(spec: DLJobSpec) -> Iterator[Finding]:
    """Yield ports that are free on a laptop, and that Ray takes in every pod."""
    for index, role in enumerate(spec.roles):
        for at, port in enumerate(role.ports):
            if port.port in AGENT_PORTS:
                words = f"on Kubernetes Ray takes port {port.port} of every pod for {AGENT_PORTS[port.port]}"
                hint = f"choose another number, or port: 0; {role.name} would end with PortTakenError"
                yield Finding(("spec", "roles", index, "ports", at, "port"), words, hint)


def _probes(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role in enumerate(spec.roles):
        for key, probe in probes_of(role):
            loc: Loc = ("spec", "roles", index, key)
            yield from _probe(role, probe, loc)
            # One success starts a rank, or shows that it lives; Kubernetes has the same rule.
            if key != "readinessProbe" and probe.success_threshold != 1:
                yield Finding((*loc, "successThreshold"), f"a {key} succeeds at once", "leave successThreshold out")


def _probe(role: Role, probe: Probe, loc: Loc) -> Iterator[Finding]:
    kinds = {"httpGet": probe.http_get, "tcpSocket": probe.tcp_socket, "exec": probe.exec_, "grpc": probe.grpc}
    kind_names = [name for name, value in kinds.items() if value is not None]
    if len(kind_names) != 1:
        yield Finding(loc, f"{cel.PROBE.message}; here {' and '.join(kind_names) or 'none'}")
        return
    target = probe.http_get or probe.tcp_socket or probe.grpc
    if target is not None:
        yield from port_findings(role, target.port, (*loc, kind_names[0], "port"))
    if probe.http_get is not None:
        yield from header_findings(probe.http_get, (*loc, "httpGet"))


def header_findings(get: HttpGet, loc: Loc) -> Iterator[Finding]:
    """Refuse a second header of one name."""
    yield from one_each((*loc, "httpHeaders"), [header.name for header in get.http_headers], "headers")


def port_findings(role: Role, port: str, loc: Loc) -> Iterator[Finding]:
    """Refuse a port that the role does not have, or that is none."""
    names = [role_port.name for role_port in role.ports]
    if not port.isdecimal() and port not in names:
        hint = one_of(port, names) if names else "give the role ports"
        yield Finding(loc, f"{role.name} has no port {port}", hint, (loc, (*loc[:3], "ports", NAMES)))
    if port.isdecimal() and int(port) > 65535:
        yield Finding(loc, "a port is at most 65535")


def _drains(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role in enumerate(spec.roles):
        if role.drain is None:
            continue
        loc: Loc = ("spec", "roles", index, "drain")
        if role.entrypoint.class_ is not None:
            words = f"{cel.DRAIN.message}: {role.name} runs a class, whose shutdown() can wait for its requests"
            yield Finding(loc, words, "take drain out", (loc, ("spec", "roles", index, "entrypoint")))
        if role.drain.http_post is not None:
            yield from port_findings(role, role.drain.http_post.port, (*loc, "httpPost", "port"))


def _references(spec: DLJobSpec) -> Iterator[Finding]:
    for key, value in (("env", tuple(entry.value for entry in spec.env)), ("config", spec.config)):
        for name in dict.fromkeys(referred(value)):
            # Every role has them, also the one that is referred to, which cannot wait for itself.
            words = f"refers to the endpoints of {name}, for which the roles must wait"
            yield Finding(("spec", key), words, f"write it in the {key} of roles with dependsOn")
    servers = [role.name for role in spec.roles if role.ports]
    for index, role in enumerate(spec.roles):
        waits = {entry.role for entry in role.depends_on if entry.condition == "Ready"}
        texts = {
            "entrypoint": role.entrypoint.command,
            "args": role.args,
            "env": tuple(entry.value for entry in role.env),
            "config": role.config,
        }
        depends: Loc = ("spec", "roles", index, "dependsOn")
        for key, value in texts.items():
            loc: Loc = ("spec", "roles", index, key)
            for name in dict.fromkeys(referred(value)):
                if name not in servers:
                    hint = one_of(name, servers) if servers else "give that role ports"
                    words = f"refers to the endpoints of {name}, which is no role with ports"
                    yield Finding(loc, words, hint, (loc, ROLE_NAMES))
                elif name not in waits:
                    words = f"refers to the endpoints of {name}, for which {role.name} does not wait"
                    yield Finding(loc, words, f"add dependsOn: [{{role: {name}}}]", (loc, depends))


def probes_of(role: Role) -> tuple[tuple[str, Probe], ...]:
    """Return key in the file -> probe of a role."""
    probes = (
        ("startupProbe", role.startup_probe),
        ("livenessProbe", role.liveness_probe),
        ("readinessProbe", role.readiness_probe),
    )
    return tuple((key, probe) for key, probe in probes if probe is not None)


SERVING_RULES: tuple[Check, ...] = (_ports, _probes, _drains, _references)
