"""Samples of the catalogue's metrics, and the text that Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dljob.telemetry.catalog import CATALOG, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content-Type of the text that `exposition` returns."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a counter or a gauge. `labels` are the values of the metric's labels, in the catalogue's order."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


def sample(name: str, labels: tuple[str, ...], value: float) -> Sample:
    """Make a sample of a metric of the catalogue.

    Raises:
        ValueError: the number of labels differs from the catalogue's.
    """
    metric = CATALOG[name]
    if len(labels) != len(metric.labels):
        raise ValueError(f"{name} has the labels {', '.join(metric.labels)}; got the values {', '.join(labels)}")
    return Sample(metric, labels, value)


def exposition(samples: Iterable[Sample]) -> str:
    """Return samples, in any order, in Prometheus' text format."""
    # The format wants the samples of a family together, below its HELP and TYPE.
    families: dict[Metric, list[Sample]] = {}
    for sample in samples:
        families.setdefault(sample.metric, []).append(sample)
    lines: list[str] = []
    for metric, members in families.items():
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        lines += [f"{metric.name}{_labels(sample)} {_number(sample.value)}" for sample in members]
    return "".join(line + "\n" for line in lines)


def _labels(sample: Sample) -> str:
    pairs = zip(sample.metric.labels, sample.labels, strict=True)
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
    return f"{{{inner}}}" if inner else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    """Format a number as Go, in which Prometheus is written, parses it; a whole number without a point."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))
