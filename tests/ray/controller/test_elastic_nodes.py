"""An elastic role on a real Ray: a node that joins lets it grow, also again; one that is lost leaves it fewer ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from prime_help import Job, eventually

pytestmark = [pytest.mark.ray, pytest.mark.torch]


@pytest.fixture
def slots(ray_here: Any) -> Iterator[list[Any]]:
    """Nodes that hold a rank each."""
    nodes = [ray_here.add_node(resources={"slot": 1}) for _ in range(2)]
    yield nodes
    for node in nodes:
        ray_here.remove_node(node)


def began(job: Job, rank: int) -> list[dict[str, Any]]:
    path = job.folder / f"world-{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def world_of(job: Job, *starts: int) -> list[dict[str, Any]]:
    """What the ranks of a world began with, once each of them is in it, which is so many-th of its starts."""
    size = len(starts)

    def there() -> list[dict[str, Any]]:
        found = [began(job, rank) for rank in range(size)]
        last = [own[-1] for own, many in zip(found, starts, strict=True) if len(own) >= many]
        whole = len(last) == size and all(own["world"] == size for own in last)
        return last if whole and job.connection.status()["phase"] == "Running" else []

    return eventually(there, 180, lambda: f"no world of {size}: {job.seen()}")


def steps_saved(job: Job) -> int:
    return job.connection.status()["progress"]["lastCheckpointStep"] or 0


GROWS_AFTER_S = 5


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_role_grows_with_a_node_that_joins_goes_on_without_one_that_is_lost_and_grows_back(
    ray_here: Any, job: Job, slots: list[Any]
) -> None:
    """Orders, rooms, checkpoints and worlds are those of a job that is alone: two ranks, then three, two, and three."""
    bounds = {"type": "Elastic", "replicas": 2, "minReplicas": 1, "maxReplicas": 3, "comm": {"backend": "gloo"}}
    takes = {"resources": {"cpu": "0.5", "custom": {"slot": "1"}}}
    patience = {"elastic": {"growAfterSeconds": GROWS_AFTER_S}}
    connection = job.start({**job.role("t", "elastic_user.Counter"), **bounds, **takes}, faultTolerance=patience)
    assert [own["from"] for own in world_of(job, 1, 1)] == [0, 0]
    eventually(lambda: steps_saved(job) >= 10, 60, job.seen)

    connection.command("scale", "t=3")
    eventually(lambda: "3" in str(connection.status()["roles"][0].get("wanted")), 10, job.seen)
    slots.append(ray_here.add_node(resources={"slot": 1}))
    grown = world_of(job, 2, 2, 1)
    assert {own["reason"] for own in grown} == {"Resized"}
    (begin,) = {own["from"] for own in grown}  # all of them go on from one checkpoint
    assert begin > 10
    saved = steps_saved(job)
    eventually(lambda: steps_saved(job) > saved, 60, job.seen)

    lost = next(row["node"] for row in connection.status()["units"] if row["name"] == "t/0")
    saved = steps_saved(job)
    ray_here.kill_raylet(next(node for node in slots if node.node_id == lost))
    shrunk = world_of(job, 3, 3)
    assert len({own["from"] for own in shrunk}) == 1
    assert shrunk[0]["from"] > saved, "it goes on from the last checkpoint that was whole"
    status = connection.status()
    assert status["roles"][0]["desired"] == 2
    assert [(row["name"], row["phase"]) for row in status["units"]] == [("t/0", "Held"), ("t/1", "Held")]
    restarts = status["restarts"]

    slots.append(ray_here.add_node(resources={"slot": 1}))
    back = world_of(job, 4, 4, 2)
    assert {own["reason"] for own in back} == {"Resized"}
    assert len({own["from"] for own in back}) == 1
    assert back[0]["from"] > shrunk[0]["from"]
    assert job.connection.status()["restarts"] == {**restarts, "role": restarts["role"] + 1}
    notes = [note for note in connection.notes() if note["reason"] == "Resized"]
    assert [note["message"] for note in notes[::2]] == ["3 ranks instead of 2: there is room for more"] * 2
    assert notes[1]["message"].startswith("2 ranks instead of 3: ")
    # What it was given it lost again at once, so it waited twice as long as it else does.
    assert notes[2]["time"] - notes[1]["time"] >= 2 * GROWS_AFTER_S

    job.go()
    final = connection.wait(60)
    assert final["phase"] == "Succeeded", job.seen()
    eventually(lambda: not job.left(), 10, lambda: f"left: {job.left()}")
