"""WeightChannel by a collective group and by Ray Direct Transport, on a real Ray: who gets what by which way."""

from __future__ import annotations

import os
import signal

import pytest
from prime_help import QUICK, Job, eventually, said

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(420)]


@pytest.mark.slow
def test_a_group_and_direct_transport_carry_versions_and_who_comes_late_has_them_from_the_store(job: Job) -> None:
    roles = [
        job.role("trainer", "way_user.publish"),
        {**job.role("reader", "way_user.receive"), "replicas": 2},
        {"name": "script", "entrypoint": {"module": "way_user.py"}},
    ]
    roles = [{**role, "resources": {"cpu": "0.2"}} for role in roles]
    group = {"name": "weights", "roles": ["trainer", "reader", "script"], "timeoutSeconds": 120}
    connection = job.start(*roles, collectives={"groups": [group]}, faultTolerance=QUICK)
    ranks = {"reader/0": "rdt", "reader/1": "rdt", "script/0": "store"}
    (job.folder / "go-1").touch()
    for rank, direct in ranks.items():
        got = said(job, "got-1", rank)
        assert (got["right"], got["by"]) == (True, ["collective", direct]), rank
    assert said(job, "sent-1", "trainer/0")["by"] == ["collective", "rdt"]
    os.kill(said(job, "ready", "reader/1")["pid"], signal.SIGKILL)
    late = said(job, "got-1", "reader/1", 2)
    assert (late["right"], late["by"]) == (True, ["store", "rdt"])
    (job.folder / "go-2").touch()
    for rank, direct in ranks.items():
        got = said(job, "got-2", rank, 2 if rank == "reader/1" else 1)
        assert (got["right"], got["by"]) == (True, ["collective", direct]), rank
    first = min(job.folder.glob("tensor-*"))  # each version is one bucket, and two versions are kept
    (job.folder / "go-3").touch()
    eventually(lambda: not first.exists() and len(list(job.folder.glob("tensor-*"))) == 2, 60, job.seen)
    (job.folder / "end").touch()
    assert connection.wait(60)["phase"] == "Succeeded"


def test_a_users_own_transport_carries_versions_and_the_store_does_while_a_side_is_dead_raises_or_hangs(
    job: Job,
) -> None:
    roles = [job.role("trainer", "own_transport_user.publish"), job.role("reader", "own_transport_user.receive")]
    connection = job.start(*[{**role, "resources": {"cpu": "0.2"}} for role in roles], faultTolerance=QUICK)

    def exchange(version: int, publisher_incarnation: int = 1, reader_incarnation: int = 1) -> list[str]:
        (job.folder / f"go-{version}").touch()
        sent = said(job, f"sent-{version}", "trainer/0", publisher_incarnation)
        got = said(job, f"got-{version}", "reader/0", reader_incarnation)
        assert got["right"]
        return [sent["by"], got["by"]]

    assert exchange(1) == ["Folder", "Folder"]
    os.kill(said(job, "sent-1", "trainer/0")["pid"], signal.SIGKILL)
    os.kill(said(job, "ready", "reader/0")["pid"], signal.SIGKILL)
    got = said(job, "got-1", "reader/0", 2)
    assert (got["right"], got["by"]) == (True, "Folder")
    (job.folder / "raise-reader-0").touch()
    assert exchange(2, 2, 2) == ["Folder", "store"]
    (job.folder / "raise-reader-0").unlink()
    assert exchange(3, 2, 2) == ["Folder", "Folder"]
    (job.folder / "hang-trainer-0").touch()
    assert exchange(4, 2, 2) == ["store", "store"]
    (job.folder / "end").touch()
    assert connection.wait(60)["phase"] == "Succeeded"
    output = "".join(path.read_text(errors="replace") for path in (job.folder / "logs").rglob("*.log"))
    assert "receive: version 2 goes by the store: the transport Folder: OSError: the share is not mounted" in output
    assert "publish: version 4 goes by the store: the transport Folder: TimeoutError: it did not return" in output
