"""Devices that raylets declare, given out by Ray: who sees which, before and after restarts, and as a spare."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from prime_help import Job, eventually

from dljob.telemetry.records import scan

pytestmark = pytest.mark.ray


def sees(job: Job, rank: str, incarnation: int = 1) -> dict[str, Any]:
    return json.loads((job.folder / f"sees-{rank.replace('/', '-')}-{incarnation}").read_text())


def test_two_groups_of_scripts_on_a_host_find_their_devices_at_their_local_ranks(job: Job) -> None:
    script = {
        "name": "w", "type": "Elastic", "entrypoint": {"module": "accelerator_user.py"}, "replicas": 4,
        "replicasPerGroup": 2, "resources": {"cpu": "0.5"}, "accelerator": {"type": "NPU"},
        "comm": {"backend": "gloo"},
    }  # fmt: skip
    job.start(script, faultTolerance={"spares": {"processesPerNode": 1}})
    ranks = [f"w/{rank}" for rank in range(4)]
    pids = job.running(*ranks)
    before = [sees(job, rank) for rank in ranks]
    (visible,) = {seen["ASCEND_RT_VISIBLE_DEVICES"] for seen in before}
    assert sorted(visible.split(",")) == ["0", "1", "2", "3"]
    assert [int(seen["LOCAL_RANK"]) for seen in before] == [seen["own"] for seen in before] == [0, 1, 2, 3]
    os.kill(pids["w/2"], signal.SIGKILL)
    job.running(*ranks, incarnation=dict.fromkeys(ranks, 2))
    assert [sees(job, rank, 2) for rank in ranks] == before
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"
    job.nothing_left()


def test_ranks_of_a_virtual_local_rank_see_one_device_each_and_each_another(job: Job) -> None:
    """As after `dljob torchrun --virtual-local-rank`, also where Ray is told to leave the variable alone."""
    script = {
        "name": "w", "type": "Elastic", "entrypoint": {"module": "accelerator_user.py"}, "replicas": 2,
        "replicasPerGroup": 2, "resources": {"cpu": "0.5"}, "accelerator": {"type": "NPU"},
        "comm": {"backend": "gloo", "virtualLocalRank": True},
        "env": [{"name": "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES", "value": "1"}],
    }  # fmt: skip
    job.start(script)
    job.running("w/0", "w/1")
    seen = [sees(job, rank) for rank in ("w/0", "w/1")]
    assert [(one["LOCAL_RANK"], one["own"]) for one in seen] == [("0", 0)] * 2
    assert {one["ASCEND_RT_VISIBLE_DEVICES"] for one in seen} < {"0", "1", "2", "3"}
    assert seen[0]["ASCEND_RT_VISIBLE_DEVICES"] != seen[1]["ASCEND_RT_VISIBLE_DEVICES"]
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"
    job.nothing_left()


def test_shares_of_a_device_are_the_same_for_a_spare(job: Job, ray_here: Any) -> None:
    """Two roles share two GPUs by 0.4 and 0.6: the classes see their own, the torch world sees both."""
    node = ray_here.add_node(num_gpus=2, labels={"dljob.io/node-group": "many"})
    try:
        actor, critic = (
            {
                "name": name, "entrypoint": {"class": "accelerator_user.note"}, "replicas": 2, "replicasPerGroup": 2,
                "resources": {"cpu": "0.3"}, "nodeGroup": "many", "accelerator": {"type": "GPU", "count": share},
            }
            for name, share in (("a", "0.4"), ("c", "0.6"))
        )  # fmt: skip
        job.start(
            actor,
            {**critic, "type": "Elastic", "comm": {"backend": "gloo", "initProcessGroup": False}},
            collocations=[{"name": "both", "roles": ["a", "c"], "level": "Device"}],
            nodeGroups=[{"name": "many", "cpu": "4", "accelerator": {"type": "GPU", "count": 2}}],
            faultTolerance={"spares": {"processesPerNode": 1}},
        )
        ranks = ["a/0", "a/1", "c/0", "c/1"]
        pids = job.running(*ranks)
        before = {rank: sees(job, rank) for rank in ranks}
        first, second = (before[rank]["CUDA_VISIBLE_DEVICES"] for rank in ("a/0", "a/1"))
        assert {first, second} == {"0", "1"}
        assert [before[rank]["CUDA_VISIBLE_DEVICES"] for rank in ("c/0", "c/1")] == [f"{first},{second}"] * 2
        assert [before[rank]["own"] for rank in ranks] == [0, 0, 0, 1]
        assert [before[rank]["held"] for rank in ranks] == [[0.4, 0], [0.4, 0], [0.6, 0], [0.6, 1]], "its memory too"
        spares = eventually(lambda: spare_pids(job, "a"), 60, job.seen)
        os.kill(pids["a/1"], signal.SIGKILL)
        after = job.running(*ranks, incarnation={"a/1": 2})
        assert after["a/1"] in spares
        assert sees(job, "a/1", 2) == before["a/1"]
        job.go()
        assert job.connection.wait(60)["phase"] == "Succeeded"
        job.nothing_left()
    finally:
        ray_here.remove_node(node)


def spare_pids(job: Job, role: str) -> list[int]:
    """The pids of a role's spares that are ready, as the journal has them."""
    events = [r["e"] for file in job.segments() for r in scan(file.read_bytes()).records if r["k"] == "event"]
    return [e["pid"] for e in events if e["t"] == "SpareReady" and e["role"] == role]
