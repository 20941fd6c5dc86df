"""Jobs as a whole on a real Ray: side by side, without room, on dying nodes, with devices; and nothing left of any."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from cloudy import ordered
from prime_help import USERS, Job, eventually

from dljob.errors import NotFoundError, UsageError
from dljob.runtime.job.launch import attach, list_jobs
from dljob.telemetry import reasons

pytestmark = pytest.mark.ray


@pytest.fixture
def jobs(ray_here: Any, tmp_path: Path) -> Any:
    made: list[Job] = []

    def make() -> Job:
        made.append(Job(tmp_path / str(len(made))))
        return made[-1]

    yield make
    for job in made:
        job.close()


@pytest.fixture
def job(jobs: Any) -> Job:
    return jobs()


def worker(job: Job, n: int = 1, cpu: str = "0.5", **more: Any) -> dict[str, Any]:
    return job.role("worker", "prime_user.until_told", **{"replicas": n, "resources": {"cpu": cpu}, **more})


# -- many jobs


def test_two_jobs_side_by_side_do_not_touch_each_other(jobs: Any) -> None:
    one, two = jobs(), jobs()
    one.start(worker(one, 2), name="one")
    two.start(worker(two, 2), name="two")
    before = two.running("worker/0", "worker/1")
    one.running("worker/0", "worker/1")
    assert {"one", "two"} <= {entry.name for entry in list_jobs()}
    assert attach("one").uid == one.uid
    assert attach(two.uid[:8]).name == "two"
    one.connection.command("stop")
    assert one.connection.wait(60)["reason"] == reasons.STOPPED
    assert two.connection.pids() == before
    two.go()
    assert two.connection.wait(60)["phase"] == "Succeeded"
    one.nothing_left()
    two.nothing_left()
    with pytest.raises(NotFoundError, match="no job 'one' lives"):
        attach("one")


def test_the_same_name_again_at_once_is_another_job(jobs: Any) -> None:
    for number in range(2):
        job = jobs()
        job.start(worker(job), name="again")
        job.running("worker/0")
        job.go()
        status = job.connection.wait(60)
        assert (number, status["phase"], status["restarts"]["process"]) == (number, "Succeeded", 0)
    job.nothing_left()


def test_a_job_without_room_waits_for_the_one_that_has_it(jobs: Any) -> None:
    """Each wants three CPUs on both nodes of four; the second is admitted whole when the first has gone."""
    one, two = jobs(), jobs()
    one.start(worker(one, 2, "3"))
    one.running("worker/0", "worker/1")
    two.start(worker(two, 2, "3"))
    status = eventually(lambda: "CPU" in (s := two.connection.status())["message"] and s, 30, two.seen)
    assert status["phase"] == "Pending"
    assert two.left().get("groups", []) == []
    one.go()
    assert one.connection.wait(60)["phase"] == "Succeeded"
    two.running("worker/0", "worker/1")
    two.go()
    assert two.connection.wait(60)["phase"] == "Succeeded"
    two.nothing_left()


def test_a_plan_that_never_fits_is_refused_with_the_numbers(job: Job) -> None:
    job.start(worker(job, 1, "64"))
    status = job.connection.wait(60)
    assert (status["phase"], status["reason"]) == ("Failed", reasons.NEVER_FITS)
    assert "64" in status["message"]
    job.nothing_left()


# -- endings


def test_user_code_that_must_fail_again_ends_the_job_at_once(job: Job) -> None:
    job.start(job.role("worker", "prime_user.not_there"))
    status = job.connection.wait(60)
    assert (status["phase"], status["reason"]) == ("Failed", reasons.USER_ERROR_REPEATS)
    assert "not_there" in status["message"]
    job.nothing_left()


def test_a_deadline_ends_the_job(job: Job) -> None:
    job.start(worker(job), activeDeadlineSeconds=3)
    status = job.connection.wait(60)
    assert (status["phase"], status["reason"]) == ("Failed", reasons.DEADLINE_EXCEEDED)
    job.nothing_left()


def test_a_stopped_job_that_never_had_room_leaves_nothing(jobs: Any) -> None:
    one, two = jobs(), jobs()
    one.start(worker(one, 2, "3"))
    one.running("worker/0", "worker/1")
    two.start(worker(two, 2, "3"))
    two.connection.command("stop")
    assert two.connection.wait(60)["reason"] == reasons.STOPPED
    one.connection.command("stop")
    assert one.connection.wait(60)["reason"] == reasons.STOPPED
    two.nothing_left()
    one.nothing_left()


def test_an_ended_job_tells_its_story_from_its_folder(job: Job) -> None:
    job.start(job.role("worker", "prime_user.quick"))
    status = job.connection.wait(60)
    job.nothing_left()
    assert job.connection.status() == status
    notes = job.connection.notes()
    assert [note["seq"] for note in notes] == list(range(1, len(notes) + 1))
    assert [n["reason"] for n in notes].count(reasons.COMPLETED) == 1
    assert job.connection.pids() == {}
    job.connection.command("stop")


# -- nodes


def test_ranks_of_a_dead_node_go_on_elsewhere(job: Job, ray_here: Any) -> None:
    """On the machine that a package of somebody else's orders in its place."""
    node = second = ray_here.add_node(num_cpus=1, resources={"FLAG": 1})
    try:
        flagged = job.role("flagged", "prime_user.until_told", resources={"cpu": "1", "custom": {"FLAG": "1"}})
        job.start(worker(job), flagged, faultTolerance={"leaseSeconds": 5, "node": {"relauncher": "cloudy"}})
        before = job.running("worker/0", "flagged/0")
        ray_here.kill_raylet(node)
        assert eventually(lambda: ordered(node.node_id), 60, job.seen) == "NodeLost"
        second = ray_here.add_node(num_cpus=1, resources={"FLAG": 1})
        after = job.running("worker/0", "flagged/0", incarnation={"flagged/0": 2})
        assert after["worker/0"] == before["worker/0"]
        eventually(lambda: not Path(f"/proc/{before['flagged/0']}").exists(), 10, lambda: "the old rank lives on")
        status = job.connection.status()
        assert any(fault["reason"] == "NodeLost" for fault in status["recentFaults"])
        assert [note["target"] for note in job.connection.notes() if note["reason"] == reasons.NODE_RELAUNCH]
        job.go()
        assert job.connection.wait(60)["phase"] == "Succeeded"
        job.nothing_left(20)
    finally:
        ray_here.remove_node(node)
        ray_here.remove_node(second)


# -- devices


def test_each_rank_sees_the_device_of_its_bundle_before_and_after_a_restart(job: Job) -> None:
    npu = {"type": "NPU", "count": "1"}
    job.start(job.role("worker", "prime_user.shows_devices", replicas=2, accelerator=npu))
    before = job.running("worker/0", "worker/1")
    first, second = ((job.folder / f"devices-{rank}-1").read_text() for rank in (0, 1))
    assert first != second
    os.kill(before["worker/1"], signal.SIGKILL)
    job.running("worker/0", "worker/1", incarnation={"worker/1": 2})
    assert (job.folder / "devices-1-2").read_text() == second
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"
    job.nothing_left()


@pytest.mark.parametrize(("visibility", "count"), [("Shared", 2), ("Isolated", 1)])
def test_a_group_of_scripts_sees_all_devices_of_its_bundles_or_each_its_own(
    job: Job, visibility: str, count: int
) -> None:
    npu = {"type": "NPU", "count": "1", "visibility": visibility}
    script = {"name": "worker", "entrypoint": {"module": "devices_script.py"}, "accelerator": npu}
    job.start({**script, "replicas": 2, "replicasPerGroup": 2, "resources": {"cpu": "0.5"}})
    job.running("worker/0", "worker/1")
    ids = [(job.folder / f"devices-{rank}").read_text().split(",") for rank in (0, 1)]
    assert [len(seen) for seen in ids] == [count, count]
    assert (ids[0] == ids[1]) is (count == 2)
    assert len({*ids[0], *ids[1]}) == 2
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"
    job.nothing_left()


# -- spares


def test_a_spare_takes_over_also_under_a_new_master(job: Job) -> None:
    from ray.util import list_named_actors

    def spares() -> list[str]:
        names = (row["name"] for row in list_named_actors(all_namespaces=True))
        return sorted(name for name in names if name.startswith(f"{job.uid[:8]}/worker/spare-"))

    job.start(worker(job, 2), faultTolerance={"spares": {"processesPerNode": 1}})
    before = job.running("worker/0", "worker/1")
    ready = eventually(lambda: job.segments() and ready_spares(job), 60, job.seen)
    job.kill_master(before["master"])
    eventually(lambda: len(job.segments()) == 2, 30, job.seen)
    os.kill(before["worker/1"], signal.SIGKILL)
    after = job.running("worker/0", "worker/1", incarnation={"worker/1": 2})
    assert after["worker/0"] == before["worker/0"]
    assert after["worker/1"] in ready
    assert spares()
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"
    job.nothing_left()


def ready_spares(job: Job) -> list[int]:
    """The pids of the spares that are ready, as the journal has them."""
    from dljob.telemetry.records import scan

    events = [r["e"] for segment in job.segments() for r in scan(segment.read_bytes()).records if r["k"] == "event"]
    return [e["pid"] for e in events if e["t"] == "SpareReady"]


# -- the journal


def test_a_disk_that_fills_up_fails_the_job_and_spoils_nothing(job: Job) -> None:
    from dljob.telemetry.records import scan

    job.start(worker(job))
    pids = job.running("worker/0")
    size = job.segments()[0].stat().st_size
    resource.prlimit(pids["master"], resource.RLIMIT_FSIZE, (size + 10, size + 10))
    os.kill(pids["worker/0"], signal.SIGKILL)
    status = job.connection.wait(60)
    assert (status["phase"], status["reason"]) == ("Failed", "JournalFailed")
    assert "cannot be written: File too large" in status["message"]
    job.nothing_left()
    assert not scan(job.segments()[0].read_bytes()).torn_tail


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda data: data.replace(b'"NodesSeen"', b'"NodesSean"', 1), "damaged at byte"),
        (lambda data: data.replace(b'"v":3', b'"v":9', 1), "damaged at byte 0"),
    ],
)
def test_a_damaged_journal_fails_the_job_with_the_offset(job: Job, spoil: Any, said: str) -> None:
    job.start(worker(job))
    pids = job.running("worker/0")
    segment = job.segments()[0]
    segment.write_bytes(spoil(segment.read_bytes()))
    job.kill_master(pids["master"])
    status = job.connection.wait(60)
    assert (status["phase"], status["reason"]) == ("Failed", "JournalFailed")
    assert said in status["message"]
    job.nothing_left()


def test_the_journal_may_live_in_the_key_value_store(job: Job) -> None:
    job.start(worker(job, 2), backend={"name": "ray", "options": {"journal": "kv"}})
    before = job.running("worker/0", "worker/1")
    job.kill_master(before["master"])
    os.kill(before["worker/1"], signal.SIGKILL)
    after = job.running("worker/0", "worker/1", incarnation={"worker/1": 2})
    assert after["worker/0"] == before["worker/0"]
    assert job.segments() == []
    job.go()
    status = job.connection.wait(60)
    assert (status["phase"], status["restarts"]["master"]) == ("Succeeded", 1)
    job.nothing_left()


def test_an_unknown_backend_is_refused_and_never_replaced(job: Job) -> None:
    with pytest.raises(UsageError, match="'horde' is not installed; installed: ray"):
        job.start(worker(job), backend={"name": "horde"})


# -- extensions


def test_a_sub_master_that_dies_is_made_again_and_its_ranks_meet_anew(job: Job, tmp_path: Path) -> None:
    """It is somebody else's: its package is in the folder of the code; its process is killed, and no rank's."""
    example = USERS.parents[2] / "examples" / "sub-master"
    code = Path(shutil.copytree(example, tmp_path / "code"))
    shutil.copy(USERS / "ring_user.py", code)
    ring = job.role("ring", "ring_user.Summing", type="Elastic", replicas=2, comm={"subMaster": "ring"})
    job.start(ring, code=code, faultTolerance={"backoff": {"initialSeconds": 0}})
    before = job.running("ring/0", "ring/1")
    os.kill(pid_of(f"{job.uid[:8]}/ring/store/1"), signal.SIGKILL)
    after = job.running("ring/0", "ring/1", incarnation={"ring/0": 2, "ring/1": 2})
    assert after["master"] == before["master"]
    assert pid_of(f"{job.uid[:8]}/ring/store/2")
    job.go()
    status = job.connection.wait(60)
    assert status["phase"] == "Succeeded", job.seen()
    assert json.loads(status["result"]) == {"generation": 2, "ranks": 2}
    restarting = [note for note in job.connection.notes() if note["reason"] == "Restarting"]
    assert [note["target"] for note in restarting] == ["ring"], restarting
    assert "ring/store" in restarting[0]["message"], restarting
    job.nothing_left()


def pid_of(actor: str) -> int:
    """The process of an actor that lives."""
    from ray._private.state import state

    rows = state.actor_table(None).values()
    (pid,) = (row["Pid"] for row in rows if row["Name"] == actor and row["State"] == "ALIVE")
    return pid
