"""Panels as HTML with inline SVG, from a dashboard's JSON and what Prometheus answered."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from drawn_values import colour, column, legend, shown, threshold, ticks
from queries import substituted

INK, FAINT = "#ccccdc", "#2c3235"


@dataclass(frozen=True, slots=True)
class Series:
    """A line: (unix seconds, value) in the order of time."""

    name: str
    colour: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Span:
    """The time shown, in unix seconds, and the step of its points."""

    begin: float
    end: float
    step: float


@dataclass(frozen=True, slots=True)
class Box:
    """Where a chart is drawn, in pixels within its panel."""

    left_edge: float
    top: float
    right: float
    bottom: float

    def x(self, at: float, span: Span) -> float:
        """Of a moment."""
        return self.left_edge + (at - span.begin) / (span.end - span.begin) * (self.right - self.left_edge)

    def y(self, value: float, top: float) -> float:
        """Of a value between 0 and `top`."""
        return self.bottom - value / top * (self.bottom - self.top)


def series_of(panel: Mapping[str, Any], answers: Sequence[Sequence[Mapping[str, Any]]]) -> list[Series]:
    """The lines of a panel, from the answers to its queries in their order."""
    all_series: list[Series] = []
    for target, answer in zip(panel["targets"], answers, strict=True):
        for result in answer:
            name = legend(target["legendFormat"], result["metric"])
            values = result["values"] if "values" in result else [result["value"]]
            points = tuple((float(at), float(value)) for at, value in values)
            all_series.append(Series(name, colour(name, len(all_series), panel["fieldConfig"]), points))
    return sorted(all_series, key=lambda series: series.name) if len(panel["targets"]) == 1 else all_series


def _nothing(panel: Mapping[str, Any]) -> str:
    return f'<div class="none">{escape(panel["fieldConfig"]["defaults"].get("noValue", "No data"))}</div>'


def stat(panel: Mapping[str, Any], answers: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """One value, or one name, in large."""
    config, all_series = panel["fieldConfig"], series_of(panel, answers)
    if not all_series:
        return _nothing(panel)
    value = all_series[0].points[-1][1]
    if panel["options"]["textMode"] == "name":
        has_own_colour = any(override["matcher"]["id"] == "byRegexp" for override in config.get("overrides", ()))
        ink = all_series[0].colour if has_own_colour else threshold(value, config)
        return f'<div class="stat" style="color:{ink}">{escape(all_series[0].name)}</div>'
    text = shown(value, config["defaults"]["unit"])
    return f'<div class="stat" style="color:{threshold(value, config)}">{escape(text)}</div>'


def timeseries(
    panel: Mapping[str, Any], answers: Sequence[Sequence[Mapping[str, Any]]], span: Span, width: int, height: int
) -> str:
    """Lines, stacked areas or bars, with axes, a dashed limit, and a legend of last values and maxima."""
    all_series = series_of(panel, answers)
    if not all_series:
        return _nothing(panel)
    defaults = panel["fieldConfig"]["defaults"]
    look, unit, whole_numbers = defaults["custom"], defaults["unit"], defaults.get("decimals") == 0
    named = panel["options"]["legend"]
    beside, rows = named["placement"] == "right", len(all_series)
    below = 0 if beside else 46 if named.get("displayMode") == "list" else 19 * (rows + 1)
    box = Box(76, 8, width - (_beside(unit) if beside else 12), height - 26 - below)
    stacked = bool(look.get("stacking")) and look["stacking"]["mode"] == "normal"
    steps = defaults.get("thresholds", {}).get("steps", ())
    limits = [step for step in steps if step.get("value") is not None] if "thresholdsStyle" in look else []
    sums: dict[float, float] = {}
    highest = max((v for s in all_series for _, v in s.points if not math.isnan(v)), default=0.0)
    if stacked:
        for series in all_series:
            for at, value in series.points:
                sums[at] = sums.get(at, 0.0) + value
        highest = max(sums.values())
    most = defaults.get("max") or max([highest * 1.05, *(step["value"] for step in limits)])
    marks = ticks(most, unit, whole_numbers=whole_numbers)
    parts = [_axes(box, span, marks, unit)]
    bars = look.get("drawStyle") == "bars"
    parts.append(
        _stack(all_series, box, span, marks[-1], bars=bars) if stacked else _lines(all_series, box, span, marks[-1])
    )
    for step in limits:
        y = box.y(step["value"], marks[-1])
        parts.append(f'<line x1="{box.left_edge}" x2="{box.right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{step["color"]}" '
                     'stroke-dasharray="8 6"/>')  # fmt: skip
    svg = f'<svg width="{box.right + 8:.0f}" height="{box.bottom + 24:.0f}">{"".join(parts)}</svg>'
    if named.get("displayMode") == "list":
        return svg + _names(all_series)
    return svg + _legend(all_series, unit, beside=beside, whole_numbers=whole_numbers)


def _names(all_series: Sequence[Series]) -> str:
    """A legend of names alone."""
    names = "".join(
        f'<span><i style="background:{series.colour}"></i>{escape(series.name)}</span>' for series in all_series
    )
    return f'<div class="names">{names}</div>'


def _axes(box: Box, span: Span, marks: Sequence[float], unit: str) -> str:
    parts: list[str] = []
    for mark in marks:
        y = box.y(mark, marks[-1])
        parts.append(f'<line x1="{box.left_edge}" x2="{box.right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}"/>')
        parts.append(
            f'<text x="{box.left_edge - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(shown(mark, unit))}</text>'
        )
    return "".join(parts) + _times(box, span)


def _times(box: Box, span: Span) -> str:
    """Round times below a chart, in UTC."""
    every = next(s for s in (10, 30, 60, 300, 900, 1800, 3600, 7200) if (span.end - span.begin) / s <= 7 or s == 7200)
    first = span.begin + (-span.begin) % every
    parts: list[str] = []
    for number in range(int((span.end - first) // every) + 1):
        at = first + number * every
        text = time.strftime("%H:%M" if every >= 60 else "%H:%M:%S", time.gmtime(at))
        parts.append(f'<text x="{box.x(at, span):.1f}" y="{box.bottom + 16:.1f}" text-anchor="middle">{text}</text>')
    return "".join(parts)


def _runs(points: Sequence[tuple[float, float]], step: float) -> list[list[tuple[float, float]]]:
    """Points without the gaps: a gap ends a line."""
    runs: list[list[tuple[float, float]]] = []
    for at, value in points:
        if math.isnan(value):
            continue
        if not runs or at - runs[-1][-1][0] > 1.5 * step:
            runs.append([])
        runs[-1].append((at, value))
    return runs


def _lines(all_series: Sequence[Series], box: Box, span: Span, top: float) -> str:
    parts: list[str] = []
    for series in all_series:
        for run in _runs(series.points, span.step):
            path = " ".join(f"{box.x(at, span):.1f},{box.y(value, top):.1f}" for at, value in run)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{series.colour}" stroke-width="2"/>')
    return "".join(parts)


def _stack(all_series: Sequence[Series], box: Box, span: Span, top: float, *, bars: bool) -> str:
    below: dict[float, float] = {}
    parts: list[str] = []
    for series in all_series:
        for run in _runs(series.points, span.step):
            edges = [(at, below.get(at, 0.0), below.get(at, 0.0) + value) for at, value in run]
            below.update((at, high) for at, _, high in edges)
            if bars:
                parts += [
                    f'<rect x="{box.x(at, span) - 2:.1f}" y="{box.y(high, top):.1f}" width="4" '
                    f'height="{box.y(low, top) - box.y(high, top):.1f}" fill="{series.colour}"/>'
                    for at, low, high in edges
                    if high > low
                ]
                continue
            path = [f"{box.x(at, span):.1f},{box.y(high, top):.1f}" for at, _, high in edges]
            path += [f"{box.x(at, span):.1f},{box.y(low, top):.1f}" for at, low, _ in reversed(edges)]
            parts.append(f'<polygon points="{" ".join(path)}" fill="{series.colour}" fill-opacity="0.6" '
                         f'stroke="{series.colour}" stroke-width="1"/>')  # fmt: skip
    return "".join(parts)


def _legend(all_series: Sequence[Series], unit: str, *, beside: bool, whole_numbers: bool) -> str:
    lines = ["<tr><th></th><th>Last</th><th>Max</th></tr>"]
    for series in all_series:
        values = [value for _, value in series.points if not math.isnan(value)] or [math.nan]
        last, most = (escape(shown(round(v) if whole_numbers else v, unit)) for v in (values[-1], max(values)))
        name = f'<i style="background:{series.colour}"></i>{escape(series.name)}'
        lines.append(f"<tr><td>{name}</td><td>{last}</td><td>{most}</td></tr>")
    style = f' style="width:{_beside(unit) - 22}px"' if beside else ""
    return f'<table class="legend{" beside" if beside else ""}"{style}>{"".join(lines)}</table>'


def _beside(unit: str) -> int:
    """How many pixels a legend on the right takes."""
    return 230 if unit in ("none", "short", "percentunit") else 330


def timeline(
    panel: Mapping[str, Any], answers: Sequence[Sequence[Mapping[str, Any]]], span: Span, width: int, height: int
) -> str:
    """A row for each series; a bar where its value is 1."""
    all_series = series_of(panel, answers)
    box = Box(110, 4, width - 12, height - 26)
    size = (box.bottom - box.top) / max(len(all_series), 1)
    parts = [_times(box, span)]
    for place, series in enumerate(all_series):
        y = box.top + place * size
        parts.append(f'<text x="100" y="{y + size / 2 + 4:.1f}" text-anchor="end">{escape(series.name)}</text>')
        parts.append(f'<rect x="{box.left_edge}" y="{y + 2:.1f}" width="{box.right - box.left_edge}" '
                     f'height="{size - 4:.1f}" fill="{FAINT}" fill-opacity="0.5"/>')  # fmt: skip
        for run in _runs([(at, value) for at, value in series.points if value], span.step):
            bar_left, right = box.x(run[0][0], span), box.x(min(run[-1][0] + span.step, span.end), span)
            parts.append(f'<rect x="{bar_left:.1f}" y="{y + 2:.1f}" width="{right - bar_left:.1f}" '
                         f'height="{size - 4:.1f}" fill="{series.colour}"/>')  # fmt: skip
    return f'<svg width="{width}" height="{height}">{"".join(parts)}</svg>'


def table(panel: Mapping[str, Any], answers: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """Instant vectors joined on their shared labels, with the columns of the `organize` transformation."""
    (organize,) = [t["options"] for t in panel["transformations"] if t["id"] == "organize"]
    labels: list[set[str]] = [set(result["metric"]) for answer in answers for result in answer]
    shared = set[str].intersection(*labels) if labels else set[str]()
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for target, answer in zip(panel["targets"], answers, strict=True):
        for result in answer:
            line = lines.setdefault(tuple(result["metric"][label] for label in sorted(shared)), {})
            line.update(result["metric"])
            line["Value" if len(answers) == 1 else f"Value #{target['refId']}"] = result["value"][1]
    fields = sorted(organize["includeByName"], key=organize["indexByName"].__getitem__)
    titles = [organize["renameByName"][name] for name in fields]
    if not lines:
        return _nothing(panel)
    body = "".join(
        "<tr>"
        + "".join(_cell(line.get(name, ""), title, panel) for name, title in zip(fields, titles, strict=True))
        + "</tr>"
        for line in sorted(lines.values(), key=lambda line: [line.get(name, "") for name in fields])
    )
    return f'<table class="list"><tr>{"".join(f"<th>{escape(t)}</th>" for t in titles)}</tr>{body}</table>'


def _cell(text: str, title: str, panel: Mapping[str, Any]) -> str:
    unit = column(title, "unit", panel["fieldConfig"])
    if unit and text:
        return f"<td>{escape(shown(float(text), unit))}</td>"
    linked = bool(column(title, "links", panel["fieldConfig"])) and text
    return f'<td class="link">{escape(text)}</td>' if linked else f"<td>{escape(text)}</td>"


def text(panel: Mapping[str, Any], variables: Mapping[str, str]) -> str:
    """Commands and what each shows, with the dashboard's variables in them."""
    lines: list[str] = []
    for line in panel["options"]["content"].split("  \n"):
        _, command, shows = substituted(line, variables).split("`")
        lines.append(f"<p><code>{escape(command)}</code>{escape(shows)}</p>")
    return f'<div class="text">{"".join(lines)}</div>'
