"""A node is lost or stopped, with a spare one available: until its ranks are in user code there. Ray is as it comes.

And none goes or stops, while everything that computes on the machine has to share it with 20 programs that only take
time (BENCH_LOAD_S seconds, 600 if it is not set): nobody may be taken for frozen.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Entries, Row, alive, cluster, folder, live_actors, runs, say, until
from bench_jobs import journaled, manifest, role, submit

from dljob.linux.descendants import below

RANKS = 4
LOAD = 20
LEFT = ("NodeFrozen", "NodeLost")


def raylet_of(node: Any) -> int:
    """The raylet's pid."""
    return node.all_processes["raylet"][0].process.pid


def holder(made: Any, pids: list[int]) -> Any:
    """The node whose raylet is the parent of these processes."""
    return next(node for node in made.raylets if set(pids) <= set(below(raylet_of(node))))


def everybody(node: Any) -> list[int]:
    """The raylet and all below it."""
    return [raylet_of(node), *below(raylet_of(node))]


def send(pids: list[int], number: signal.Signals) -> None:
    """A signal to each that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def heard(handle: Any) -> bool:
    """Whether both nodes have an agent that answers: before that nothing is known of a node but what Ray says."""
    mine = f"{handle.uid[:8]}/agent/"
    agents = [row for row in live_actors() if row["Name"].startswith(mine) and row["State"] == "ALIVE"]
    return len(agents) == 2


def warm(handle: Any) -> bool:
    """Whether a process waits on the spare node for each rank."""
    return len([event for _, event in journaled(handle) if event["t"] == "SpareReady"]) >= RANKS


def parts(handle: Any, fault: float) -> dict[str, float]:
    """Seconds from the fault to the last of each thing that has to happen, as the journal has it."""
    found = {event["t"]: at - fault for at, event in journaled(handle) if at > fault}
    return {kind: found[kind] for kind in ("UnitReserved", "RankReady")}


def one(made: Any, where: Path, *, freeze: bool) -> tuple[float, float, float, dict[str, float]]:
    """Seconds from the fault to the last rank in user code elsewhere, to the decision; from thaw to end; parts."""
    entries = Entries(where)
    job = manifest("node", where, [role("worker", "bench_app.stay", RANKS, "1")], spares={"nodes": 1})
    # What is measured is the default: `manifest` takes the backoff away, which the first failure has not anyway.
    handle = submit(job)
    try:
        old = [entry["pid"] for entry in entries.await_count(RANKS, 60)]
        until(lambda: heard(handle) and warm(handle), 60, 0.05)
    except TimeoutError:
        say(*(f"  {note}\n" for note in handle.events()), handle.status())
        raise
    time.sleep(1.0)
    node = holder(made, old)
    all_of_it = everybody(node)
    fault = time.time()
    send(all_of_it if freeze else all_of_it[:1], signal.SIGSTOP if freeze else signal.SIGKILL)
    try:
        new = [entries.next_of("worker", rank, fault) for rank in range(RANKS)]
    except TimeoutError:
        say(*(f"  {note}\n" for note in handle.events()))
        raise
    took = max(entry["t"] for entry in new) - fault
    steps = parts(handle, fault)
    decided = next(note["time"] for note in handle.events() if note["reason"] in LEFT) - fault
    ended = 0.0
    if freeze:
        thaw = time.monotonic()
        send(all_of_it, signal.SIGCONT)
        until(lambda: not any(alive(pid) for pid in old), 60, 0.005)
        ended = time.monotonic() - thaw
    handle.stop()
    handle.wait()
    # A spare node is entirely free, which one that was away may not be again for a while.
    made.remove_node(node, allow_graceful=False)
    made.raylets.remove(node)
    made.raylets.append(made.add_node(num_cpus=RANKS, object_store_memory=100 << 20))
    until(lambda: not any(alive(pid) for pid in old), 60, 0.02)
    time.sleep(2.0)
    return took, decided, ended, steps


def told(left: float, steps: dict[str, float]) -> str:
    """The way of one incident in words."""
    return ", ".join([f"left after {left:.2f}", *(f"{kind} {at:.2f}" for kind, at in steps.items())])


def under_load(where: Path, seconds: float) -> Row:
    """Nodes that were taken for frozen while a job runs beside LOAD programs that never wait."""
    entries = Entries(where)
    handle = submit(manifest("load", where, [role("worker", "bench_app.stay", RANKS, "1")]))
    entries.await_count(RANKS)
    until(lambda: heard(handle), 60, 0.05)
    # No longer than it takes, whatever becomes of us.
    forever = ["timeout", f"{seconds + 60:.0f}", "sh", "-c", "while :; do :; done"]
    busy = [subprocess.Popen(forever) for _ in range(LOAD)]
    try:
        time.sleep(seconds)
        load = os.getloadavg()[0]
        false = [note for note in handle.events() if note["reason"] in LEFT]
        restarts = sum(handle.status()["restarts"].values())
    finally:
        for program in busy:
            program.terminate()
            program.wait()
    handle.stop()
    handle.wait()
    what = f"two nodes for {seconds:.0f} s beside {LOAD} busy programs: nodes taken for frozen or lost"
    row = Row("node_false", what, "0", len(false), 0, unit="nodes", facts={"no restarts": not restarts})
    row.note = f"load {load:.0f} at the end"
    return row


def main() -> None:
    """Three rows."""
    killed: list[tuple[float, float, float, dict[str, float]]] = []
    frozen: list[tuple[float, float, float, dict[str, float]]] = []
    with cluster(RANKS, RANKS, quick=False) as made:
        for number in range(runs(9)):
            for found, freeze in ((killed, False), (frozen, True)):
                with folder() as where:
                    found.append(one(made, where, freeze=freeze))
            words = [f"{took:.2f} s ({told(left, steps)})" for took, left, _, steps in (killed[-1], frozen[-1])]
            say(f"  run {number + 1}: killed {words[0]}, frozen {words[1]}, old ranks end in {frozen[-1][2]:.3f} s")
        for name, found, fault, limit in (
            ("node_killed", killed, "raylet killed", 3.0),
            ("node_frozen", frozen, "node frozen (SIGSTOP of all of it)", 5.0),
        ):
            took, left, ended, steps = (list(column) for column in zip(*found, strict=True))
            what = f"{fault}, a spare node available: its {RANKS} ranks in user code there"
            samples = {"dljob": took, "until it is left": left}
            samples |= {f"until the last {kind}": [each[kind] for each in steps] for kind in steps[0]}
            if found is frozen:
                samples["from its thaw to the old ranks' end"] = ended
            Row(name, what, f"<= {limit:.0f} s", median(took), limit, samples=samples).emit()
        with folder() as where:
            under_load(where, float(os.environ.get("BENCH_LOAD_S", "600"))).emit()


if __name__ == "__main__":
    main()
