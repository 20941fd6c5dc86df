"""Servers that load published weights by a request: who fails is stale, who restarts loads before it serves."""

from __future__ import annotations

import json
import os
import signal
from typing import Any
from urllib.request import urlopen

import pytest
from prime_help import QUICK, USERS, Job, eventually

pytestmark = pytest.mark.ray
HTTP = [{"name": "http"}]


@pytest.fixture
def fleet(ray_here, tmp_path):
    del ray_here
    job = Job(tmp_path)
    yield job
    job.close()


def rows(job: Job, role: str) -> list[dict[str, Any]]:
    return [row for row in job.connection.status()["ranks"] if row["role"] == role]


def states(job: Job, role: str = "engine") -> list[tuple[str, int | None]]:
    return [(row["weights"]["state"], row["weights"]["version"]) for row in rows(job, role)]


def until_states(job: Job, *wanted: tuple[str, int | None], role: str = "engine") -> None:
    eventually(lambda: states(job, role) == list(wanted), 60, lambda: f"{states(job, role)}: {job.seen()}")


def test_servers_load_what_is_published_and_a_stale_one_gets_no_requests(fleet):
    engine = {
        "name": "engine",
        "entrypoint": {"module": "weights_engine.py"},
        "replicas": 3,
        "driver": False,
        "resources": {"cpu": "0.1"},
        "ports": HTTP,
        "readinessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 1},
        "weights": {
            "channels": ["policy"],
            "maxLag": 1,
            "load": {"httpPost": {"path": "/load", "port": "http"}},
            "verify": {"httpGet": {"path": "/sum", "port": "http"}},
        },
    }
    reader = {
        **fleet.role("reader", "weights_trainer.Reader", driver=False),
        "weights": {"channels": ["policy"], "load": {"method": "load_weights"}},
    }
    trainer = fleet.role("trainer", "weights_trainer.train")
    fleet.start(trainer, engine, reader, code=USERS / "served", faultTolerance=QUICK)
    until_states(fleet, *[("Fresh", None)] * 3)
    (fleet.folder / "fail-1").touch()
    (fleet.folder / "publish-1").touch()
    until_states(fleet, ("Fresh", 1), ("Stale", None), ("Fresh", 1))
    until_states(fleet, ("Fresh", 1), role="reader")
    eventually(lambda: endpoints(fleet) == [0, 2], 60, fleet.seen)

    def stale() -> str:
        return " ".join(row["weights"]["why"] for row in rows(fleet, "engine") if row["weights"]["state"] == "Stale")

    # It is out of the endpoints before its load has failed.
    eventually(lambda: "status 500, 'out of memory'" in stale(), 60, fleet.seen)
    # A load that went well leaves other bytes in the engine: it is told, and loads again.
    (fleet.folder / "wrong-0").touch()
    (fleet.folder / "fail-1").unlink()
    (fleet.folder / "publish-2").touch()
    until_states(fleet, *[("Fresh", 2)] * 3)
    told = [note["message"] for note in fleet.connection.notes() if note["target"] == "engine/0"]
    assert any("it holds '000" in message for message in told), told
    eventually(lambda: endpoints(fleet) == [0, 1, 2], 60, fleet.seen)
    # Who is killed is stale first, and is in no list until it has loaded.
    (fleet.folder / "fail-2").touch()
    os.kill(fleet.connection.pids()["engine/2"], signal.SIGKILL)
    eventually(lambda: states(fleet)[2] == ("Stale", None), 60, fleet.seen)
    eventually(lambda: endpoints(fleet) == [0, 1], 60, fleet.seen)
    (fleet.folder / "fail-2").unlink()
    until_states(fleet, *[("Fresh", 2)] * 3)
    held = {json.loads(urlopen(f"http://{each}/held").read())["first"] for each in addresses(fleet)}
    assert held == {2.0}
    check_weights_of_left_steps(fleet)
    accounts = {row["name"]: row["accounts"] for row in fleet.connection.status()["ledger"]["roles"]}
    assert accounts["engine"]["stale"] > 0
    assert not list((fleet.folder / "weights").glob("*/*")), "no file outlives its load"
    fleet.go()
    assert fleet.connection.wait(60)["phase"] == "Succeeded"


def test_a_publisher_is_answered_with_what_it_has_published(fleet):
    reader = {
        **fleet.role("reader", "weights_trainer.Reader", driver=False),
        "weights": {"channels": ["policy"], "maxLag": 0, "minReady": 0, "load": {"method": "load_weights"}},
    }
    fleet.start(fleet.role("trainer", "weights_trainer.publish_and_call"), reader, code=USERS / "served")
    eventually((fleet.folder / "answers").exists, 60, fleet.seen)
    assert json.loads((fleet.folder / "answers").read_text()) == list(range(1, 21))
    eventually(lambda: told(fleet, "WeightsStale"), 60, fleet.seen)
    words = "version 21 was not loaded, again in 1 s: channel policy: layer.w is str, which no file of weights holds"
    assert told(fleet, "WeightsStale")[0]["message"].startswith(words)
    fleet.go()
    assert fleet.connection.wait(60)["phase"] == "Succeeded"


def told(job: Job, reason: str) -> list[dict[str, Any]]:
    return [note for note in job.connection.notes() if note["reason"] == reason]


def check_weights_of_left_steps(job: Job) -> None:
    """Check that nobody gets requests with weights that were published after the cut to which the trainer goes back."""
    (job.folder / "cut").touch()
    eventually(lambda: told(job, "CutCommitted"), 60, job.seen)
    (job.folder / "cut").unlink()
    (job.folder / "publish-3").touch()
    until_states(job, *[("Fresh", 3)] * 3)
    eventually(lambda: endpoints(job) == [0, 1, 2], 60, job.seen)
    for rank in range(3):
        (job.folder / f"fail-{rank}").touch()
    os.kill(job.connection.pids()["trainer/0"], signal.SIGKILL)
    until_states(job, *[("Stale", None)] * 3)
    eventually(lambda: endpoints(job) == [], 60, job.seen)
    left = [note["message"] for note in told(job, "WeightsStale") if note["target"] == "engine"]
    assert len(left) == 1, left
    assert left[0].startswith("engine/0, engine/1, engine/2 hold or load weights of steps after cut "), left
    # The version of the cut is still there, and comes first; then the trainer publishes the number once more.
    for rank in range(3):
        (job.folder / f"fail-{rank}").unlink()
    until_states(job, *[("Fresh", 2)] * 3)
    eventually(lambda: endpoints(job) == [0, 1, 2], 60, job.seen)
    assert {json.loads(urlopen(f"http://{each}/held").read())["first"] for each in addresses(job)} == {2.0}
    (job.folder / "again").touch()
    until_states(job, *[("Fresh", 3)] * 3)


def table(job: Job) -> list[dict[str, Any]]:
    """Return the servers that the file of endpoints names: the one that scripts read."""
    return json.loads((job.folder / "endpoints" / "engine-0.json").read_text())["engine"]


def endpoints(job: Job) -> list[int]:
    return [row["rank"] for row in table(job)]


def addresses(job: Job) -> list[str]:
    return [row["addresses"]["http"] for row in table(job)]
