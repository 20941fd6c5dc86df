"""Display of ranks' stacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from dljob.cli import output

Form = Literal["text", "json", "yaml"]


def show(found: Mapping[str, str], form: Form) -> None:
    """Print stacks by rank."""
    if form != "text":
        output.structured(dict(found), form)
        return
    for rank, text in found.items():
        output.data(f"== {rank}\n{text.rstrip()}")
