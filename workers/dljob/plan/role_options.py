"""A role's scalar options. Made by `python -m dljob.spec.generate`; change the model, not this file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleOptions:
    """Options that a plan has as the spec has them, which describes them; empty or 0 where they are left out."""

    python: str = ""
    nice: int = 0
    node_group: str = ""
    service: bool = False
