"""The fields of a plan that enter its digest: those of the first version always, later ones only with a value."""

from __future__ import annotations

from dataclasses import asdict, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_KEY = "later"
LATER = MappingProxyType({_KEY: True})
"""Metadata of a field that was added after journals existed: a job that does not use it keeps its digest, and with it
its journal."""


def content(of: DataclassInstance) -> dict[str, Any]:
    """Return the fields that enter the digest."""
    optional = {one.name for one in fields(of) if _KEY in one.metadata}
    return {key: value for key, value in asdict(of).items() if value or key not in optional}
