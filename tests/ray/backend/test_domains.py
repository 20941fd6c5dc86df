"""Devices after a move: a rack loses a machine, its role goes to the other rack and gets the devices of there."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
import ray
from prime_help import Job, eventually
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dljob.telemetry import reasons
from dljob.telemetry.records import scan

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]
VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"


@pytest.fixture
def racks(ray_here: Any) -> Any:
    """Rack a: two machines of one NPU. Rack b: one of four, the first of which somebody else has."""
    group = {"dljob.io/node-group": "npu"}
    small = [
        ray_here.add_node(num_cpus=2, resources={"NPU": 1}, labels={**group, "rack": "a"}),
        ray_here.add_node(num_cpus=2, resources={"NPU": 1}, labels={**group, "rack": "a"}),
    ]
    large = ray_here.add_node(num_cpus=4, resources={"NPU": 4}, labels={**group, "rack": "b"})
    there = NodeAffinitySchedulingStrategy(large.node_id, soft=False)
    holder = ray.remote(num_cpus=0, resources={"NPU": 1}, scheduling_strategy=there)(Holder).remote()
    yield small, large, ray.get(holder.own.remote(), timeout=60)
    ray.kill(holder)
    for node in (*small, large):
        ray_here.remove_node(node)


class Holder:
    """Somebody else's actor, with a device of its own."""

    def own(self) -> str:
        return ray.get_runtime_context().get_accelerator_ids()["NPU"][0]


def sees(job: Job, rank: str, incarnation: int) -> dict[str, Any]:
    return json.loads((job.folder / f"sees-{rank.replace('/', '-')}-{incarnation}").read_text())


def events(job: Job, kind: str) -> list[dict[str, Any]]:
    found = [r["e"] for file in job.segments() for r in scan(file.read_bytes()).records if r["k"] == "event"]
    return [event for event in found if event["t"] == kind]


def test_a_role_that_moves_gets_the_devices_of_where_it_comes_to(job: Job, ray_here: Any, racks: Any) -> None:
    small, large, taken = racks
    ranks = ["w/0", "w/1"]
    note = {"entrypoint": {"class": "accelerator_user.note"}, "resources": {"cpu": "0.5"}, "nodeGroup": "npu"}
    job.start(
        {
            **note, "name": "w", "replicas": 2, "accelerator": {"type": "NPU"},
            "annotations": {"scheduling.dljob.io/topology-key": "rack"},
        },
        {**note, "name": "bare", "annotations": {"scheduling.dljob.io/label-selector": '{"rack": "b"}'}},
        nodeGroups=[
            {
                "name": "npu", "replicas": 2, "cpu": "4", "accelerator": {"type": "NPU", "count": 4},
                "labels": {"rack": "b"},
            }
        ],
        faultTolerance={"spares": {"processesPerNode": 1}},
    )  # fmt: skip
    job.running(*ranks, "bare/0")
    assert {sees(job, rank, 1)[VISIBLE] for rank in ranks} == {"0"}, "two machines of one device each"
    assert sees(job, "bare/0", 1)[VISIBLE] == sees(job, "bare/0", 1)["CUDA_VISIBLE_DEVICES"] == ""
    assert sees(job, "bare/0", 1)["devices"] == {}

    ray_here.kill_raylet(small[0])
    after = job.running(*ranks, incarnation=dict.fromkeys(ranks, 2), within=90)
    moved = {rank: sees(job, rank, 2) for rank in ranks}
    ids = {seen[VISIBLE] for seen in moved.values()}
    assert len(ids) == 2
    assert ids <= {"0", "1", "2", "3"} - {taken}
    assert all(seen["devices"] == {"NPU": [seen[VISIBLE]]} and seen["own"] == 0 for seen in moved.values())
    told = {note["reason"]: note["message"] for note in job.connection.notes()}
    assert told[reasons.DOMAIN_CHOSEN].startswith("rack=b (1 machine, ")
    assert "1 other unit goes to another one" in told[reasons.TOPOLOGY_DOMAIN_CHANGED]

    spares = eventually(
        lambda: [e["pid"] for e in events(job, "SpareReady") if e["role"] == "w" and e["node"] == large.node_id],
        60,
        job.seen,
    )
    os.kill(after["w/0"], signal.SIGKILL)
    last = job.running("w/0", incarnation={"w/0": 3})
    assert last["w/0"] in spares
    assert sees(job, "w/0", 3) == moved["w/0"]
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"
