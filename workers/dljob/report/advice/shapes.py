"""Which jobs are of one shape: records of another one say nothing about this job's ranks. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dljob.report.advice.job_use import JobUse
from dljob.report.advice.proposals import NoAdvice
from dljob.report.advice.values import rows
from dljob.spec.chosen_resources import SHAPE

_DEFAULTS: Mapping[str, Any] = {"type": "Actor", "replicas": 1}


def comparable(uses: Sequence[JobUse]) -> tuple[list[JobUse], list[NoAdvice]]:
    """Return the jobs of the last one's shape, which comes last, and why others are left out."""
    *others, newest = uses
    comparable_uses: list[JobUse] = []
    none: list[NoAdvice] = []
    for use in others:
        if reason := _difference(use.spec, newest.spec):
            none.append(NoAdvice(use.name, f"another shape of job than {newest.name}: {reason}"))
        else:
            comparable_uses.append(use)
    return [*comparable_uses, newest], none


def _difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Return the first difference of two specs; empty where their records can be compared."""
    first_roles, second_roles = _roles(first), _roles(second)
    if list(first_roles) != list(second_roles):
        return f"it has the roles {', '.join(first_roles) or 'none'}, not {', '.join(second_roles) or 'none'}"
    for name, role in first_roles.items():
        for field in SHAPE:
            default = _DEFAULTS.get(field)
            first_value, second_value = role.get(field, default), second_roles[name].get(field, default)
            if first_value != second_value:
                return f"roles.{name}.{field} is {_short(first_value)}, not {_short(second_value)}"
    return ""


def _roles(spec: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(role.get("name")): role for role in rows(spec.get("roles"))}


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
