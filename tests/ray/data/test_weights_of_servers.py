"""Servers that load published weights by a request: who fails is stale, who restarts loads before it serves."""

from __future__ import annotations

from typing import Any

import pytest
from prime_help import QUICK, Job, eventually

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
    fleet.start(trainer, engine, reader, faultTolerance=QUICK)
    until_states(fleet, ("Fresh", None), ("Fresh", None), ("Fresh", None))
    (fleet.folder / "fail-1").touch()
    (fleet.folder / "publish-1").touch()
    eventually(lambda: [one for one in states(fleet) if one == ("Fresh", 1)] * 2, 60, fleet.seen)
    eventually(lambda: states(fleet)[1][0] == "Stale", 60, fleet.seen)
    until_states(fleet, ("Fresh", 1), role="reader")
