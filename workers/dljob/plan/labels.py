"""Matching of Ray's label selectors: "v", "!v", "in(a,b)", "!in(a,b)".

A node without the key satisfies the negated forms. Source: ray, `NodeLabelMatchesConstraint` in
`src/ray/common/scheduling/cluster_resource_data.cc`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

NODE_NAME = "dljob.io/node-name"
"""Label of a node of an embedded Ray with its name for users, as in `dljob plan`."""
NO_RANKS = "dljob.io/no-ranks"
"""Label of a head that offers CPUs to users' Ray tasks and actors, but carries no ranks."""


def matches(selector: Iterable[tuple[str, str]], labels: Mapping[str, str]) -> bool:
    """Return whether a node with these labels satisfies every (key, expression)."""
    return all(_satisfied(expression, labels.get(key)) for key, expression in selector)


def _satisfied(expression: str, value: str | None) -> bool:
    negated = expression.startswith("!")
    body = expression[1:] if negated else expression
    if body.startswith("in(") and body.endswith(")"):
        values = {part.strip() for part in body[3:-1].split(",")}
    else:
        values = {body}
    return (value in values) != negated
