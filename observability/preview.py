"""`python observability/preview.py [--from URL --namespace NS --dljob NAME]`: pictures of the dashboards, in docs/img.

Grafana itself is not needed: the dashboards' JSON (places, titles, units, colours, thresholds, legends) is drawn as
HTML from what Prometheus answers, and Chromium makes a PNG of it. Without --from a Prometheus is started over a made-up
fleet.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import real_prometheus
import scenario
from drawn_panels import Span, stat, table, text, timeline, timeseries
from queries import asked, load

ROOT = Path(__file__).resolve().parent.parent
WIDTH, COLUMN, LINE, GAP = 1440, 58.5, 38, 8
_STYLE = """
* {box-sizing: border-box} body {margin: 0; background: #111217; color: #ccccdc; font: 12px 'DejaVu Sans', sans-serif}
h1 {font-size: 18px; margin: 0; padding: 16px 18px 4px} p {margin: 0; padding: 0 18px; color: #9fa7b3}
.grid {position: relative; margin: 10px 18px}
.panel h2 {font-size: 12.5px; font-weight: 600; margin: 0; padding: 8px 10px 4px}
.panel {position: absolute; background: #181b1f; border: 1px solid #25282d; border-radius: 2px; overflow: hidden}
.row {position: absolute; font-size: 14px; font-weight: 600; padding-top: 8px} text {fill: #9fa7b3; font-size: 11px}
.stat {font-size: 34px; font-weight: 600; text-align: center; padding-top: 8px} .none {text-align: center;
padding-top: 30px; color: #9fa7b3} table {border-collapse: collapse; width: calc(100% - 20px); margin: 0 10px}
.legend td, .legend th {height: 19px; padding: 0 4px; text-align: right; white-space: nowrap}
.legend td:first-child {text-align: left} .legend th {color: #6e9fff; font-weight: 400} i {display: inline-block;
width: 14px; height: 4px; margin-right: 6px; vertical-align: middle; border-radius: 2px}
.list th, .list td {text-align: left; padding: 5px 6px; border-bottom: 1px solid #25282d} .list th {color: #6e9fff}
.beside {position: absolute; right: 4px; top: 36px; margin: 0}
.link {color: #6e9fff; text-decoration: underline} .names {padding: 4px 10px} .names span {margin-right: 14px}
.text p {padding: 3px 12px; color: #ccccdc} code {background: #25282d; padding: 2px 5px; margin-right: 8px;
font: 12px 'DejaVu Sans Mono', monospace; border-radius: 2px}
"""


def page(source: str, server: real_prometheus.Server, variables: Mapping[str, str], span: Span) -> tuple[str, int]:
    """A dashboard as HTML, and its height in pixels."""
    board = load(source)
    parts: list[str] = []
    bottom = 0
    for panel in board["panels"]:
        at = panel["gridPos"]
        left_edge, top = at["x"] * COLUMN, at["y"] * LINE
        width, height = round(at["w"] * COLUMN - GAP), at["h"] * LINE - GAP
        bottom = max(bottom, top + height)
        place = f"left:{left_edge:.0f}px;top:{top}px;width:{width}px;height:{height}px"
        if panel["type"] == "row":
            parts.append(f'<div class="row" style="{place}">&#8964; {escape(panel["title"])}</div>')
            continue
        inner = _drawn(panel, server, variables, span, (width - 2, height - 32))
        parts.append(f'<div class="panel" style="{place}"><h2>{escape(panel["title"])}</h2>{inner}</div>')
    chosen = ", ".join(f"{name} {value}" for name, value in variables.items() if value != ".*") or "all"
    head = f"<h1>{escape(board['title'])}</h1><p>{escape(board['description'])} ({escape(chosen)})</p>"
    grid = f'<div class="grid" style="height:{bottom}px">{"".join(parts)}</div>'
    return f'<!doctype html><meta charset="utf-8"><style>{_STYLE}</style>{head}{grid}', bottom + 90


def _drawn(
    panel: Mapping[str, Any],
    server: real_prometheus.Server,
    variables: Mapping[str, str],
    span: Span,
    size: tuple[int, int],
) -> str:
    if panel["type"] == "text":
        return text(panel, variables)
    answers = [
        server.query(query.expr, span.end)
        if query.instant
        else server.query_range(query.expr, span.begin, span.end, span.step)
        for query in asked(panel, variables)
    ]
    if panel["type"] == "stat":
        return stat(panel, answers)
    if panel["type"] == "table":
        return table(panel, answers)
    draw = {"timeseries": timeseries, "state-timeline": timeline}[panel["type"]]
    return draw(panel, answers, span, *size)


def shoot(html: str, height: int, into: Path) -> None:
    """A PNG of a page, by Chromium without a window."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("preview: no chromium on PATH (Debian: apt-get install --no-install-recommends chromium)")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "page.html"
        source.write_text(html, encoding="utf-8")
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile",
        ]
        command = [program, *flags, f"--window-size={WIDTH},{height}", f"--screenshot={into}", source.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


def draw_all(server: real_prometheus.Server, span: Span, job: Mapping[str, str], into: Path) -> None:
    """All dashboards, each as a PNG."""
    into.mkdir(parents=True, exist_ok=True)
    values = {"fleet": {"namespace": ".*"}, "job": job, "operator": {"operator": ".*"}}
    for name, variables in values.items():
        source = (ROOT / f"charts/dljob/observability/dashboards/{name}.json").read_text(encoding="utf-8")
        html, height = page(source, server, variables, span)
        shoot(html, height, into / f"dashboard-{name}.png")
        sys.stderr.write(f"wrote {into / f'dashboard-{name}.png'}\n")


def main(arguments: list[str]) -> None:
    """Draw, from a Prometheus that runs or from one over the made-up fleet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="address", help="URL of a Prometheus; without it: a made-up fleet")
    parser.add_argument("--namespace", default=scenario.SHOWN["namespace"])
    parser.add_argument("--dljob", default=scenario.SHOWN["dljob"])
    parser.add_argument("--minutes", type=float, default=60 * scenario.HOURS, help="how far back")
    parser.add_argument("--into", type=Path, default=ROOT / "docs/img")
    chosen = parser.parse_args(arguments)
    job = {"namespace": chosen.namespace, "dljob": chosen.dljob}
    seconds = chosen.minutes * 60
    step = max(seconds / 360, 1.0)
    if chosen.address:
        end = time.time()
        draw_all(real_prometheus.Server(chosen.address), Span(end - seconds, end, step), job, chosen.into)
        return
    with tempfile.TemporaryDirectory() as folder:
        real_prometheus.backfill(scenario.recording(), Path(folder) / "data")
        with real_prometheus.serving(Path(folder), flags=scenario.FLAGS) as server:
            draw_all(server, Span(scenario.END - seconds, scenario.END, step), job, chosen.into)


if __name__ == "__main__":
    main(sys.argv[1:])
