"""Ranks that stand still on a real Ray: named with their stacks, ended, and the job goes on."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prime_help import QUICK, Job, eventually

from dljob.telemetry import reasons

pytestmark = pytest.mark.ray


class Monitor:
    """A program on this machine that offers metrics: `text` is its answer."""

    def __init__(self) -> None:
        self.text = "stuck 0\n"
        monitor = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(monitor.text.encode())

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def witness(self, name: str, **more: Any) -> dict[str, Any]:
        says: dict[str, Any] = {"metric": "stuck", "means": "Hang", "when": "Above", "value": 0, "forSeconds": 1}
        return {"name": name, "port": self._server.server_port, **says, **more}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    made = Monitor()
    yield made
    made.close()


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def found(job: Job, reason: str = reasons.HANG_FOUND) -> list[dict[str, Any]]:
    return [note for note in job.connection.notes() if note["reason"] == reason]


def stepped(job: Job, role: str, least: int) -> None:
    """Wait until each rank of a role has told so many steps."""

    def there() -> bool:
        steps = [row["step"] or 0 for row in job.connection.status()["ranks"] if row["role"] == role]
        return min(steps) >= least

    eventually(there, 90, job.seen)


@pytest.mark.timeout(400)
def test_a_stopped_rank_of_a_torch_group_is_named_with_all_stacks_and_the_group_goes_on(
    job: Job, monitor: Monitor
) -> None:
    group = {"type": "Elastic", "replicas": 3, "resources": {"cpu": "0.3"}, "comm": {"backend": "gloo"}}
    ports = free_ports(3)
    env = [
        {"name": "RECORDERS", "value": ",".join(map(str, ports))},
        {"name": "TORCH_FR_BUFFER_SIZE", "value": "64"},
    ]
    recorders = [
        {"name": f"recorder-{n}", "dump": {"port": port, "urlPath": "/handler/fr_trace_json", "body": "{}"}}
        for n, port in enumerate(ports)
    ]
    job.start(
        {"name": "trainer", "entrypoint": {"module": "hang_user.py"}, "env": env, **group},
        faultTolerance={"hang": {"idleSeconds": 8}, "witnesses": [monitor.witness("timer"), *recorders]},
    )
    names = [f"trainer/{rank}" for rank in range(3)]
    pids = job.running(*names)
    stepped(job, "trainer", 12)
    os.kill(pids["trainer/1"], signal.SIGSTOP)
    (note,) = eventually(lambda: found(job), 60, job.seen)
    assert note["target"] == "trainer/1"
    assert f"process {pids['trainer/1']} is stopped by a signal (state T)" in note["message"]
    job.running(*names, incarnation=dict.fromkeys(names, 2), within=90)
    stacks = (job.folder / "stacks" / "trainer-1-1.txt").read_text()
    assert str(job.folder / "stacks" / "trainer-1-1.txt") in note["message"]
    parts = dict(part.split("\n", 1) for part in stacks.split("== ")[1:])
    assert sorted(parts) == names
    for waits in ("trainer/0", "trainer/2"):
        assert "all_reduce" in parts[waits], stacks
    fault = job.connection.status()["lastFault"]
    assert (fault["reason"], fault["seconds"] is not None) == ("Hang", True), job.seen()
    stepped(job, "trainer", 8)
    culprit_by_witness(job, monitor)
    job.running(*names, incarnation=dict.fromkeys(names, 3), within=90)
    job.go()
    status = job.connection.wait(60)
    assert status["phase"] == "Succeeded", job.seen()
    assert len(found(job)) == 2
    job.nothing_left()


def culprit_by_witness(job: Job, monitor: Monitor) -> None:
    """All ranks wait in one collective, so nothing of theirs tells which one is to blame: the witness does."""
    monitor.text = 'stuck{rank="2"} 1\n'
    told = "trainer/2: witness timer: stuck > 0 for 1 s of rank=2, which means Hang"
    # The other nodes of this machine read the same monitor, and have no rank of that number.
    eventually(lambda: told in [note["message"] for note in found(job, reasons.WITNESS_SAW)], 60, job.seen)
    (job.folder / "wait-2").touch()
    eventually(lambda: len(found(job)) == 2, 120, job.seen)
    note = found(job)[1]
    assert note["target"] == "trainer/2", note
    assert "all ranks wait in a collective; witness timer: stuck > 0 for 1 s of rank=2" in note["message"]
    # Nothing waits for dumps: each file is linked at once, and written when its answer is there, or with the reason.
    files = [Path(path) for path in note["message"].partition("dumps: ")[2].partition("; stacks")[0].split(", ")]
    assert {path.name.rpartition("-")[0] for path in files} == {f"trainer-2-2.recorder-{n}" for n in range(3)}
    eventually(lambda: all(path.exists() for path in files), 60, job.seen)
    traces = [path.read_text() for path in files]
    assert any('"profiling_name":"gloo:all_reduce"' in trace for trace in traces), traces


def test_a_rank_that_spins_and_one_that_is_stopped_are_ended_and_their_peers_are_not(
    job: Job, monitor: Monitor
) -> None:
    entry = {"replicas": 3, "resources": {"cpu": "0.3"}}
    job.start(
        {**job.role("w", "hang_user.alone"), **entry},
        faultTolerance={
            "hang": {"busySeconds": 1, "idleSeconds": 1},
            "witnesses": [monitor.witness("timer", act=True)],
        },
    )
    names = [f"w/{rank}" for rank in range(3)]
    pids = job.running(*names)
    stepped(job, "w", 60)
    (job.folder / "spin-2").touch()
    os.kill(pids["w/0"], signal.SIGSTOP)
    job.running("w/0", "w/2", incarnation={"w/0": 2, "w/2": 2}, within=120)
    notes = {note["target"]: note["message"] for note in found(job)}
    assert sorted(notes) == ["w/0", "w/2"], job.seen()
    assert "is stopped by a signal (state T)" in notes["w/0"]
    assert "it works in user code at hang_user.py:" in notes["w/2"]
    assert "in spin;" in notes["w/2"], notes
    assert "spin (" in (job.folder / "stacks" / "w-2-1.txt").read_text()
    before = job.connection.pids()
    assert before["w/1"] == pids["w/1"]
    # A witness that may act ends the rank that it names, though that one steps as before: it alone, and only once.
    monitor.text = 'stuck{rank="1"} 1\n'
    after = job.running("w/1", incarnation={"w/1": 2}, within=90)
    assert {rank: after[rank] for rank in ("w/0", "w/2")} == {rank: before[rank] for rank in ("w/0", "w/2")}
    accused = [note for note in found(job) if note["target"] == "w/1"]
    assert [note["message"] for note in accused] == ["witness timer: stuck > 0 for 1 s of rank=1"], job.seen()
    old = "w/1: witness timer: stuck > 0 for 1 s of rank=1, which means Hang"  # it began before this process
    eventually(lambda: old in [note["message"] for note in found(job, reasons.WITNESS_SAW)], 60, job.seen)
    assert job.connection.pids()["w/1"] == after["w/1"]
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded", job.seen()


def ask(job: Job, action: str) -> None:
    """Start a trainer that waits for an answer which does not come."""
    small = {"resources": {"cpu": "0.3"}}
    silent = {**job.role("reward", "hang_user.Silent", driver=False), **small}
    hang = {"action": action, "idleSeconds": 5}
    job.start({**job.role("trainer", "hang_user.asks"), **small}, silent, faultTolerance={**QUICK, "hang": hang})


def standing(job: Job) -> dict[str, Any]:
    """Return the one stall that stands now; empty: there is none."""
    stalls = job.connection.status().get("stalls") or [{}]
    assert len(stalls) == 1, stalls
    return stalls[0]


@pytest.mark.timeout(300)
def test_a_stall_is_the_same_one_after_its_masters_death(job: Job) -> None:
    ask(job, "Ignore")
    before = eventually(lambda: standing(job), 90, job.seen)
    head, _, tail = before["sentence"].partition(" s for ")
    assert re.fullmatch(r"trainer/0 has waited \d+(\.\d)?", head), before
    where = re.compile(r"reward/0\.score, which runs at hang_user\.py:\d+ in score")  # A loop of two lines.
    assert where.fullmatch(tail), before
    job.kill_master(job.master_pid())
    eventually(lambda: job.connection.status()["restarts"]["master"] == 1, 60, job.seen)
    until = time.monotonic() + 20
    while time.monotonic() < until:  # as long as a new PrimeMaster may take to know all waits
        after = standing(job)
        assert (after["since"], where.sub("", after["sentence"].partition(" s for ")[2])) == (before["since"], ""), (
            after,
            before,
        )
        time.sleep(1)
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded", job.seen()
    assert len(found(job, reasons.STALL_FOUND)) == 1


@pytest.mark.timeout(300)
def test_a_callee_that_hangs_again_at_the_same_line_ends_the_job_with_its_sentence(job: Job) -> None:
    ask(job, "Restart")
    status = job.connection.wait(120)
    sentence = r"trainer/0 has waited [\d.]+ s for reward/0\.score, which runs at hang_user\.py:\d+ in score"
    again = "it stood at the same line before its restart, with no progress between"
    assert (status["phase"], status["reason"]) == ("Failed", reasons.HANG_REPEATS), job.seen()
    assert re.fullmatch(f"reward/0: Hang: {sentence}; {again}", status["message"]), status["message"]
    lost = (job.folder / "lost").read_text().splitlines()[0]
    assert re.search(rf"died with the call: it may have run, or not; it hung: {sentence}$", lost), lost
    assert len(found(job)) == 2
