"""Goodput of a peer under the faults of tests/bench/trace.yaml, seen from outside and counted alike for all.

Steps that are saved at the end, times the seconds of an undisturbed step, over the seconds of the trace. It begins once
all ranks have done their first step: the start has rows of its own. A command that ends is started again at once, as a
user or a controller does: what was saved is there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml
from peer_run import HERE, LIMIT_S, RANKS, NoFigureError, Outcome, Peer, Run, running
from workload_g import STEP_S

TRACE = HERE.parent / "trace.yaml"
WORKLOAD = "G"
LOOK_S = 0.2
"""Seconds between two looks whether the command has ended."""


@dataclass(frozen=True)
class Trace:
    """Faults, and how long all takes."""

    seconds: float
    faults: tuple[tuple[float, str], ...]
    """Seconds from the first step, and what happens then: an event of `Run.strike`."""


def trace(path: Path = TRACE) -> Trace:
    """Return what a file says, ordered by time."""
    said = yaml.safe_load(path.read_text())
    return Trace(said["seconds"], tuple(sorted((one["at"], one["what"]) for one in said["faults"])))


def measure(peer: Peer, python: Path, faults: Trace, limit_s: float = LIMIT_S) -> Outcome:
    """Run a peer once under a trace.

    Raises:
        NoFigureError: it did not start.
    """
    with running(peer, python, limit_s) as run:
        if peer.ray:
            run.start_ray(RANKS)
        run.start(WORKLOAD, RANKS)
        begin, before, again = time.monotonic(), _saved(run.out), 0
        for at, what in faults.faults:
            again += _wait(run, begin + at)
            if what not in peer.absent:
                try:
                    run.strike(what)
                except (NoFigureError, psutil.Error) as error:  # who has ended already meets nothing
                    run.note(f"{at:g} s, {what}: {error}")
        again += _wait(run, begin + faults.seconds)
        kept = _saved(run.out) - before
        return Outcome({"goodput": kept * STEP_S / faults.seconds}, left=run.leave(), again=again)


def _wait(run: Run, until: float) -> int:
    """Wait; return how often the command had to be started again."""
    again = 0
    while (left := until - time.monotonic()) > 0:
        again += run.start_again(WORKLOAD, RANKS)
        time.sleep(min(LOOK_S, left))
    return again


def _saved(out: Path) -> int:
    """Return the step of the last save."""
    file = out / "kept"
    return int(file.read_text()) if file.exists() else 0


def allowed(faults: Trace, recovery_s: dict[str, float], save_s: float = 5 * STEP_S) -> float:
    """Return the goodput that recovery times allow: a fault costs its time and half of what lies between two saves."""
    return 1 - sum(recovery_s[what] + save_s for _, what in faults.faults) / faults.seconds
