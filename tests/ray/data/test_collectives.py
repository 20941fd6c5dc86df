"""Collective groups across roles on a real Ray: who meets, what a loss does, whose backends are taken."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest
from prime_help import QUICK, Job, said

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(420)]

RANKS = ["train/0", "train/1", "rollout/0", "script/0"]


def right(seen: dict[str, Any], place: int) -> None:
    """Four members, whose tensors said their numbers."""
    assert (seen["rank"], seen["members"], seen["backend"]) == (place, RANKS, "DLJ_GLOO")
    assert seen["sum"] == [10.0] * 4
    assert seen["max"] == [3.0] * 4
    assert seen["broadcast"] == [2.0] * 3
    assert seen["gathered"] == [0, 1, 2, 3]
    assert seen["part"] == [4.0 * place]
    assert seen["reduced"] == [6.0 if place == 1 else float(place)]
    assert seen["passed"] == [0.0 if place == 3 else float(place)]
    assert seen["by_ray"] == [4.0, 4.0]
    assert seen["full"].endswith(f"/{seen['epoch']}.1/weights")


def test_ranks_of_three_roles_meet_and_meet_again_after_one_died(job: Job) -> None:
    cpu = {"cpu": "0.2"}
    roles = [
        {**job.role("train", "collective_user.Trainer"), "type": "Elastic", "replicas": 2, "comm": {"backend": "gloo"}},
        job.role("rollout", "collective_user.meets"),
        {"name": "script", "entrypoint": {"module": "collective_script.py"}},
    ]
    group = {"name": "weights", "roles": ["train", "rollout", "script"], "timeoutSeconds": 120}
    roles = [{**role, "resources": cpu} for role in roles]
    connection = job.start(*roles, collectives={"groups": [group]}, faultTolerance=QUICK)
    first = [said(job, "first", rank) for rank in RANKS]
    for place, seen in enumerate(first):
        right(seen, place)
    assert [seen.get("own") for seen in first[:2]] == [2.0, 2.0]
    time.sleep(1)  # the other three wait in an allreduce by now; if one does not yet, it is told the same
    os.kill(first[2]["pid"], signal.SIGKILL)
    killed = time.time()
    for place, rank in enumerate(RANKS):
        if rank == "rollout/0":
            seen = said(job, "first", rank, 2)
        else:
            seen = said(job, "second", rank)
            assert seen["pid"] == first[place]["pid"]
            assert (seen["lost"], seen["of"]) == (["rollout/0"], first[0]["epoch"])
            assert seen["at"] - killed < 30  # not the 120 s that an operation may take
            assert f"group weights (epoch {first[0]['epoch']}) is broken: rollout/0 " in seen["text"]
        right(seen, place)
        assert seen["epoch"] > first[0]["epoch"]
    assert connection.wait(60)["phase"] == "Succeeded"


def own(job: Job, cls: str, **group: Any) -> dict[str, Any]:
    roles = [{**job.role(name, "collective_user.by_files"), "resources": {"cpu": "0.2"}} for name in ("one", "two")]
    backends = [{"name": "files", "class": f"collective_user.{cls}"}]
    made = {"name": "own", "backend": "Files", "roles": ["one", "two"], **group}
    return {"roles": roles, "collectives": {"backends": backends, "groups": [made]}}


def test_a_backend_of_the_users_is_registered_before_their_code_and_nobody_waits_for_the_dead(job: Job) -> None:
    spec = own(job, "Files", onRestart="Fail")
    connection = job.start(*spec["roles"], collectives=spec["collectives"], faultTolerance=QUICK)
    first = [said(job, "sum", rank) for rank in ("one/0", "two/0")]
    assert [(seen["sum"], seen["registered"]) for seen in first] == [([3.0, 3.0], True)] * 2
    os.kill(first[1]["pid"], signal.SIGKILL)
    lost = said(job, "lost", "one/0")
    assert lost["lost"] == ["two/0"]
    assert "onRestart is Fail: let this error end the rank" in lost["again"]
    again = said(job, "sum", "one/0", 2)  # a new process makes the group with the other new one
    assert again["sum"] == [3.0, 3.0]
    assert again["epoch"] > first[0]["epoch"]
    assert connection.wait(60)["phase"] == "Succeeded"


def test_the_example_of_rays_documentation_is_refused_with_what_it_lacks(job: Job) -> None:
    spec = own(job, "Example")
    connection = job.start(*spec["roles"], collectives=spec["collectives"])
    final = connection.wait(60)
    assert final["phase"] == "Failed"
    text = json.dumps(final)
    assert "collective backend FILES (collective_user.Example, spec.collectives.backends) cannot be used" in text
    assert "it lacks allgather, recv, reduce, reducescatter, send, which Ray's BaseGroup requires" in text
