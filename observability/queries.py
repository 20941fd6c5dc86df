"""The queries of a dashboard's JSON, with its variables replaced as Grafana would."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

RATE_INTERVAL = "2m"
"""`$__rate_interval` at a scrape every 30 s: four of them."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A query of a panel."""

    panel: str
    ref: str
    expr: str
    legend: str
    instant: bool


def substituted(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$name` and `${name}`.

    Raises:
        KeyError: A variable that the dashboard does not have.
    """
    known = {"__rate_interval": RATE_INTERVAL, **variables}
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda match: known[match[1] or match[2]], text)


def panels(page: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """All panels with queries: neither the rows' headings nor texts."""
    return (panel for panel in page["panels"] if panel["type"] not in ("row", "text"))


def asked(panel: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[Asked]:
    """What a panel asks."""
    for target in panel["targets"]:
        expr = substituted(target["expr"], variables)
        yield Asked(panel["title"], target["refId"], expr, target["legendFormat"], bool(target.get("instant")))


def variable_queries(page: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """(variable, series, label) of each variable that is filled by `label_values(series, label)`."""
    for variable in page["templating"]["list"]:
        if variable["type"] == "query":
            query = substituted(variable["query"]["query"], variables)
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
            if match is None:
                raise ValueError(f"variable {variable['name']}: {query} is no label_values(series, label)")
            yield variable["name"], match[1], match[2]


_WORDS = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_KNOWN = frozenset(
    (
        "sum",
        "max",
        "min",
        "avg",
        "count",
        "by",
        "without",
        "on",
        "ignoring",
        "and",
        "or",
        "unless",
        "offset",
        "rate",
        "increase",
        "deriv",
        "changes",
        "absent",
        "clamp_min",
        "round",
        "histogram_quantile",
        "vector",
        "label_replace",
        "max_over_time",
    )
)


def metrics(expr: str) -> set[str]:
    """Names of series in an expression: what is neither a string, a label, a duration nor a word of PromQL."""
    bare = re.sub(r'"(?:\\.|[^"\\])*"', "", expr)
    bare = re.sub(r"\{[^}]*\}", " ", bare)
    bare = re.sub(r"\[[^\]]*\]", " ", bare)
    bare = re.sub(r"offset\s+\S+", " ", bare)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    return {word for word in _WORDS.findall(bare) if word not in _KNOWN}


def load(text: str) -> Mapping[str, Any]:
    """A dashboard from its JSON."""
    return json.loads(text)
