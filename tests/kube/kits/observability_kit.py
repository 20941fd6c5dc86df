"""A real Prometheus beside a cluster: it scrapes what the chart's monitors select and answers the panels' queries."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster.handle import Cluster

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "observability"))

import preview
import real_prometheus
from drawn_panels import Span
from monitors import scrape_config, targets
from queries import asked, load, panels
from real_prometheus import Server

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "charts/dljob/observability/rules/dljob.yaml"
MAY_BE_EMPTY = {
    "Last recovery, by level",
    "Alerts that fire",
    "Missed events within an hour",
    "From event to served weight",
}
"""Panels that may be empty and say so: a fleet without trouble, a job without a server that learns from a source."""


def available() -> None:
    """Skip the test where there is no Prometheus."""
    try:
        real_prometheus.programs()
    except real_prometheus.UnavailableError as reason:
        pytest.skip(str(reason))


@contextmanager
def following(cluster: Cluster, monitors: Sequence[Mapping[str, Any]], folder: Path) -> Iterator[Server]:
    """Run a Prometheus that scrapes what monitors select every second, as pods come and go, and evaluates our rules."""
    files = [folder / f"targets-{number}.json" for number in range(len(monitors))]
    configs = [scrape_config(monitor, str(file)) for monitor, file in zip(monitors, files, strict=True)]
    stop = threading.Event()

    def find() -> None:
        listed = cluster.get("pods,services,endpointslices", "--all-namespaces")["items"]
        for monitor, file in zip(monitors, files, strict=True):
            fresh = file.with_suffix(".new")
            fresh.write_text(json.dumps(targets(monitor, listed)))
            fresh.rename(file)

    def follow() -> None:
        while not stop.wait(1.0):
            find()

    find()
    watcher = threading.Thread(target=follow, daemon=True)
    watcher.start()
    try:
        with scraping(configs, folder) as server:
            yield server
    finally:
        stop.set()
        watcher.join(30)


@contextmanager
def scraping(configs: Sequence[Mapping[str, Any]], folder: Path) -> Iterator[Server]:
    """Run a Prometheus with our rules that scrapes every second, whatever interval the configurations set."""
    every = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    config = {
        "global": {**every, "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{**one, **every} for one in configs],
    }
    with real_prometheus.serving(folder, json.dumps(config)) as server:
        yield server


def without_data(server: Server, name: str, variables: Mapping[str, str]) -> list[str]:
    """Return the queries of a dashboard that have no data now, except those that may be empty."""
    page = load((ROOT / f"charts/dljob/observability/dashboards/{name}.json").read_text())
    return [
        f"{panel['title']}: {one.expr}"
        for panel in panels(page)
        if panel["title"] not in MAY_BE_EMPTY
        for one in asked(panel, variables)
        if not server.query(one.expr)
    ]


def draw(server: Server, begin: float, job: Mapping[str, str], folder: Path) -> None:
    """Draw the dashboards from `begin` (unix seconds) until now."""
    now = time.time()
    preview.draw_all(server, Span(begin, now, max((now - begin) / 200, 1.0)), job, folder)
