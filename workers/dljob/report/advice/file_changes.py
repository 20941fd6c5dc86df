"""Advice written into a job's file: text in, text out. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from dljob.errors import UsageError
from dljob.report.advice.proposals import Proposal
from dljob.spec.loading.load import load
from dljob.spec.text import edit, tree
from dljob.spec.text.tree import Document, Loc


def with_proposals(text: str, file: str, proposals: Iterable[Proposal]) -> str:
    """Return a job's file with the values that are proposed; all else stays, comments included.

    Raises:
        SpecError: the file is no valid DLJob, before or after.
        UsageError: it holds several jobs, lacks a role, or shares a value by an anchor.
    """
    load(text, file=file)
    index = next(number for number, document in enumerate(tree.read(text)) if _is_job(document))
    for proposal in proposals:
        if proposal.value is not None:
            text = edit.with_value(text, index, _place(tree.read(text)[index], file, proposal.field), proposal.value)
    load(text, file=file)
    return text


def _is_job(document: Document) -> bool:
    return isinstance(document.data, dict) and document.data.get("kind") == "DLJob"


def _place(document: Document, file: str, field: tuple[str, ...]) -> Loc:
    if field[0] != "roles":
        return ("spec", *field)
    roles = cast("list[dict[str, Any]]", cast("dict[str, Any]", document.data)["spec"]["roles"])
    for number, role in enumerate(roles):
        if role["name"] == field[1]:
            return ("spec", "roles", number, *field[2:])
    raise UsageError(f"{file} has no role {field[1]}", hint="name the file of the job that ran")
