"""A job's trace, read by a parser of the format: processes, threads, slices, flows, and what is left out."""

from __future__ import annotations

import json
from typing import Any

from trace_format import Trace, parse

from dljob.report import trace_events as traces
from dljob.telemetry.job_samples import ACCOUNTS

QUEUE, INIT, PRODUCTIVE, DETECT = (ACCOUNTS.index(name) for name in ("queue", "init", "productive", "detect"))
NODES = {("w", 0): "n0", ("w", 1): "n1"}
INCIDENT: dict[str, Any] = {
    "id": 4, "at": 105.0, "until": 108.0, "rank": "w/1", "reason": "Killed", "target": "w", "level": "Role",
    "cause": "w/1: Killed", "evidence": ["exit code 137"], "lostSteps": 2, "restarted": ["w/0", "w/1"],
}  # fmt: skip


def drawn(**more: Any) -> Trace:
    lanes = {"w": [[100.0, QUEUE, 101.0, PRODUCTIVE], [100.0, QUEUE, 102.0, PRODUCTIVE, 104.5, DETECT, 105.0, INIT]]}
    data = {"lanes": lanes, "accounts": ACCOUNTS, "incidents": [INCIDENT], "samples": None, **more}
    return parse(json.dumps({"traceEvents": list(traces.trace(data, NODES, 110.0))}))


def test_nodes_are_processes_and_ranks_are_threads() -> None:
    made = drawn()
    assert made.processes == {1: "job", 2: "n0", 3: "n1"}
    assert made.threads == {(2, 1): "w/0", (3, 2): "w/1"}


def test_accounts_are_slices_up_to_the_end_of_the_record() -> None:
    assert drawn().slices == {
        "w/0": [(0, 1_000_000, "queue"), (1_000_000, 10_000_000, "productive")],
        "w/1": [
            (0, 2_000_000, "queue"),
            (2_000_000, 4_500_000, "productive"),
            (4_500_000, 5_000_000, "detect"),
            (5_000_000, 10_000_000, "init"),
        ],
    }


def test_an_incident_flows_from_the_failed_rank_to_all_that_it_restarted() -> None:
    made = drawn()
    assert made.spans == [("Killed w", 5_000_000, 8_000_000)]
    assert made.flows == [("incident 4", "w/1", "w/0"), ("incident 4", "w/1", "w/1")]


def test_an_incident_without_an_end_lasts_to_the_end_of_the_record() -> None:
    made = drawn(incidents=[{**INCIDENT, "until": None}])
    assert made.spans == [("Killed w", 5_000_000, 10_000_000)]


def test_what_is_not_known_of_an_incident_is_left_out() -> None:
    unknown = [{**INCIDENT, "at": None}, {**INCIDENT, "id": 5, "rank": ""}, {**INCIDENT, "id": 6, "restarted": None}]
    gone = [{**INCIDENT, "id": 7, "restarted": ["other/0", "w"]}]
    made = drawn(incidents=unknown + gone)
    assert (len(made.spans), made.flows) == (3, [])


def test_flows_are_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(traces, "FLOWS", 3)
    assert len(drawn(incidents=[INCIDENT, {**INCIDENT, "id": 5}]).flows) == 3


def test_a_rank_that_was_dropped_has_no_slice_meanwhile() -> None:
    made = drawn(lanes={"w": [[100.0, PRODUCTIVE, 101.0, -1, 103.0, INIT, 103.0, PRODUCTIVE], []]}, incidents=[])
    assert made.slices == {"w/0": [(0, 1_000_000, "productive"), (3_000_000, 10_000_000, "productive")]}


def test_a_job_without_lanes_has_its_incidents() -> None:
    made = drawn(lanes=None)
    assert (made.threads, made.processes, [name for name, _, _ in made.spans]) == ({}, {1: "job"}, ["Killed w"])


def test_a_rank_without_a_node_is_in_a_process_of_its_own() -> None:
    assert drawn(lanes={"x": [[100.0, QUEUE]]}, incidents=[]).processes == {1: "job", 2: "no node"}


def test_sampled_metrics_are_counters() -> None:
    samples = {"times": [99.0, 101.0, 102.0, 103.0], "progress": {"loss": [9.0, 0.5, None, float("nan")]}}
    assert drawn(samples=samples).counters == {"loss": [(1_000_000, 0.5)]}


def test_ranks_of_one_node_share_its_process() -> None:
    lanes = {"w": [[100.0, QUEUE], [100.0, INIT]], "x": [[100.0, QUEUE], [100.0, INIT]]}
    made = drawn(lanes=lanes, incidents=[])
    assert made.threads == {(2, 1): "w/0", (3, 2): "w/1", (4, 3): "x/0", (4, 4): "x/1"}
    assert made.processes == {1: "job", 2: "n0", 3: "n1", 4: "no node"}
