"""Sections of `dljob describe`, on this machine and on a cluster. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dljob.api.kubernetes.jobs import items, part
from dljob.cli.output import aligned

Row = tuple[str, ...]

EVENTS = 10
"""Number of events shown; `dljob events` shows all."""


def section(title: str, lines: Sequence[str]) -> list[str]:
    """Return lines indented below a title; nothing for no lines."""
    return ["", f"{title}:", *(f"  {line}".rstrip() for line in lines)] if lines else []


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table; nothing for a heading alone."""
    return aligned(rows) if len(rows) > 1 else []


def roles(spec: Mapping[str, Any]) -> list[str]:
    """Describe the roles of a spec: entrypoint, ranks, resources and dependencies."""
    rows = [_role(role) for role in items(spec, "roles")]
    return table([("ROLE", "TYPE", "RANKS", "RUNS", "EACH RANK TAKES", "AFTER"), *rows])


def _role(role: Mapping[str, Any]) -> Row:
    least, most = role.get("minReplicas"), role.get("maxReplicas")
    span = f" ({least or role.get('replicas', 1)} to {most or role.get('replicas', 1)})" if least or most else ""
    return (
        str(role["name"]),
        str(role.get("type") or "Actor"),
        f"{role.get('replicas', 1)}{span}",
        _entrypoint(part(role, "entrypoint")),
        _takes(role),
        ", ".join(str(one.get("role")) for one in items(role, "dependsOn")) or "-",
    )


def _entrypoint(said: Mapping[str, Any]) -> str:
    return str(said.get("class") or said.get("module") or " ".join(said.get("command") or []) or "-")


def _takes(role: Mapping[str, Any]) -> str:
    resources, device = part(role, "resources"), part(role, "accelerator")
    found = [f"{device.get('count', 1)} {device.get('type') or 'device'}"] if "accelerator" in role else []
    found += [f"{resources.get('cpu') or 1} CPU"]
    found += [f"{resources['memory']} memory"] if resources.get("memory") else []
    found += [f"{amount} {name}" for name, amount in part(resources, "custom").items()]
    return ", ".join(found)


def nodes(ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe the ranks of each node, by role: n1: actor 0-3, critic 0."""
    from dljob.plan.words import ranges

    held: dict[str, dict[str, list[int]]] = {}
    for rank in ranks:
        node = str(rank.get("nodeName") or rank.get("node") or "")
        if node:
            held.setdefault(node, {}).setdefault(str(rank["role"]), []).append(int(rank["rank"]))
    return [
        f"{node}: {', '.join(f'{role} {ranges(sorted(of))}' for role, of in sorted(roles.items()))}"
        for node, roles in sorted(held.items())
    ]


def last_events(lines: Sequence[str], command: str) -> list[str]:
    """Return the end of a timeline, with the command for the rest."""
    left = len(lines) - EVENTS
    return [*([f"... {left} before: {command}"] if left > 0 else []), *lines[-EVENTS:]]
