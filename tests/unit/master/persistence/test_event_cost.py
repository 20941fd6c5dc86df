"""What an event costs does not grow with the job: counted in lines of Python, which no load changes."""

from __future__ import annotations

import sys

from master_kit import World, host, job, nodes

from dljob.master.state import events as ev
from dljob.master.state.views import Outcome, Reason
from dljob.master.transition import transition

KILLED = Outcome(ok=False, reason=Reason.UNKNOWN)


def booted(ranks):
    role = {"name": "w", "replicas": ranks, "restartPolicy": {"maxRestarts": 1000}}
    return World(job(role, faultTolerance={"maxRestarts": 1000}), views=nodes(1, cpus=ranks)).boot().state


def lines(state, todo):
    """Lines of Python, each turn of a loop counted, that folding these events takes."""
    count = 0

    def note(_frame, kind, _argument):
        nonlocal count
        count += kind == "line"
        return note

    coverage = sys.gettrace()
    sys.settrace(note)
    try:
        for event in todo:
            state = transition(state, event, 1000.0).state
    finally:
        sys.settrace(coverage)
    return count


def test_processes_that_die_together_cost_as_many_lines_in_a_large_job():
    deaths = [ev.HostLost(host("w", rank), 1, KILLED) for rank in range(10)]
    small, large = lines(booted(16), deaths), lines(booted(256), deaths)
    assert large < 1.2 * small, f"{large} lines at 256 ranks, {small} at 16"
