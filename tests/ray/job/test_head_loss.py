"""The head is lost, with all that was on it, and comes back: what it knew is kept, so nothing else restarts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_kit import Job, eventually
from head_kit import HeadApart, may_be_made
from redis_kit import redis
from usercode.cuts import PROMPTS

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.ray,
    pytest.mark.skipif(not may_be_made(), reason="needs namespaces with mounts (unshare -m -p)"),
]
KEPT = {"gcsFaultTolerance": {"backend": "RocksDB", "claimName": "gcs"}}


@pytest.fixture
def ray(tmp_path: Path) -> Iterator[HeadApart]:
    """Ray keeps what it knows in RocksDB; all machines have a volume."""
    made = HeadApart(DLJOB_CHECKPOINT=str(tmp_path / "volume"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def ray_on_redis() -> Iterator[HeadApart]:
    with redis() as address:
        made = HeadApart(redis=address)
        try:
            yield made
            assert not (made.folder / "gcs").exists()
        finally:
            made.close()


def role(name: str = "w", entry: str = "prime_user.until_told", **more: Any) -> dict[str, Any]:
    return {"name": name, "entrypoint": {"class": entry}, "resources": {"cpu": "0.5"}, **more}


def pids(seen: dict[str, Any]) -> dict[str, int]:
    return {f"{row['role']}/{row['rank']}": row["pid"] for row in seen["ranks"]}


def test_with_its_memory_kept_a_lost_head_restarts_nothing_and_a_new_launcher_finds_the_job(
    ray: HeadApart, tmp_path: Path
) -> None:
    mine = Job(tmp_path, role(replicas=2), role("s", replicas=2, driver=False), name="kept", **KEPT)
    first = ray.submit(mine, attempt=1)
    before = mine.running(ray, 150)
    session, master = ray.session(), ray.actor("PrimeMaster")
    ray.kill_head()
    ray.start_head()
    assert ray.session() == session
    back = mine.running(ray, 150)
    assert (pids(back), ray.actor("PrimeMaster")) == (pids(before), master)
    assert (back["epoch"], back["restarts"]["process"]) == (1, 0)
    # Ray's own record says that the first one is gone, in time; the second finds what is there.
    again = ray.submit(mine, attempt=1, sent=f"{first}-r1")
    mine.go(ray)
    assert ray.ended(again, 120)["driver_exit_code"] == 0, ray.log(again)
    assert "exists already" in ray.log(again)
    assert ray.submission(first)["status"] == "FAILED"
    assert mine.ask(ray, "status")[1]["phase"] == "Succeeded"


def test_the_end_of_a_job_without_a_head_is_reported_by_the_next_head(ray_on_redis: HeadApart, tmp_path: Path) -> None:
    ray = ray_on_redis
    mine = Job(tmp_path, role(replicas=2), name="ended", **KEPT)
    first = ray.submit(mine, attempt=1)
    mine.running(ray, 150)
    ray.kill_head()
    mine.go(ray)
    ray.start_head()
    again = ray.submit(mine, attempt=1, sent=f"{first}-r1")
    assert ray.ended(again, 120)["driver_exit_code"] == 0, ray.log(again)
    ended = mine.ask(ray, "status")[1]
    assert (ended["phase"], ended["epoch"]) == ("Succeeded", 1)
    assert [note["reason"] for note in mine.ask(ray, "events")[1]["events"]][-1] == "Released"
    eventually(lambda: not ray.actor("PrimeMaster"), 20, lambda: "PrimeMaster outlives its job")


@pytest.mark.slow
def test_each_prompt_is_trained_once_though_the_head_and_then_all_machines_are_lost(
    ray: HeadApart, tmp_path: Path
) -> None:
    config = {"every": 5, "pause_s": 0.02, "hold": 0, "gates": [40, 80]}
    mine = Job(
        tmp_path,
        role("trainer", "usercode.cuts.trainer", config=config),
        role("rollout", "usercode.cuts.rollout", replicas=2, driver=False),
        name="cuts",
        **KEPT,
    )

    def notes(reason: str) -> list[str]:
        code, said = mine.ask(ray, "events")
        return [note["message"] for note in said["events"] if note["reason"] == reason] if code == 200 else []

    def through(gate: int) -> None:
        mine.folder(ray).mkdir(parents=True, exist_ok=True)
        (mine.folder(ray) / f"gate-{gate}").touch()

    def told() -> str:
        return f"{mine.ask(ray, 'events')}\n{mine.launched(ray)}"

    first = ray.submit(mine, attempt=1)
    eventually(lambda: len(notes("CutCommitted")) >= 2, 150, told)
    # The queues' processes and files go with the head. The trainer, which takes cuts at its gate, does not notice; a
    # rollout that waits for a prompt does.
    ray.kill_head()
    ray.start_head()
    ray.submit(mine, attempt=1, sent=f"{first}-r1")
    eventually((mine.folder(ray) / "from-2").exists, 150, told)
    before = len(notes("CutCommitted"))
    back = json.loads((mine.folder(ray) / "from-2").read_text())
    assert back["step"] > 0
    assert back["trained"] == 2 * back["draws"]
    through(40)
    eventually(lambda: len(notes("CutCommitted")) > before, 150, told)
    ray.lose_all()
    through(40)
    through(80)
    last = ray.submit(mine, attempt=2)
    assert ray.ended(last, 200)["driver_exit_code"] == 0, told()
    state = json.loads((mine.folder(ray) / "trained").read_text())
    assert sorted(state["trained"]) == list(range(PROMPTS))
    assert len(state["draws"]) == len(set(state["draws"])) == PROMPTS // 2
    assert [text[:28] for text in notes("CutRestored")] == ["trainer/0 takes the job back"]
