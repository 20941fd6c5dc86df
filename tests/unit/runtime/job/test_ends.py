"""How a client hears of a job's end: from the folder first, else from who is left, and never from a fault of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import ray
from memory_backend import MemoryBackend, MemoryHost
from ray.exceptions import GetTimeoutError

from dljob.errors import UnreachableError
from dljob.runtime.backend.interface import ActorLostError, ActorRef
from dljob.runtime.backend.ray_backend import RayBackend
from dljob.runtime.job import launch
from dljob.runtime.job.launch import JobConnection
from dljob.runtime.journal.job_record import REGISTRY, JobRecord, is_final

UID = "e" * 32
END = {"name": "j", "uid": UID, "phase": "Succeeded", "message": "all ended well", "ranks": []}


class Silent(MemoryBackend):
    """A backend that says nothing of actors for so many looks; then it is told `then`, and there is none."""

    def __init__(self, looks: float = 0, then: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.left, self.looked, self._then = looks, 0, then

    async def lookup(self, name: str) -> ActorRef | None:
        self.looked += 1
        if self.looked <= self.left:
            raise ActorLostError("GetTimeoutError: nobody answers", certain=False)
        self._then()
        return await super().lookup(name)


def ends(folder: Path, status: dict[str, Any] = END) -> None:
    (folder / "events.jsonl").write_text(json.dumps({"seq": 1, "reason": "Completed"}) + "\n")
    (folder / "status.json").write_text(json.dumps(status, indent=1))


def job(backend: MemoryBackend, folder: Path) -> JobConnection:
    entry = JobRecord(UID, "j", str(folder), 0.0)
    backend.kv.values[REGISTRY + UID] = b"{}"
    return JobConnection(cast("Any", backend), entry)


def test_a_job_whose_folder_tells_its_end_is_not_looked_up(tmp_path):
    ends(tmp_path)
    own = job(backend := Silent(), tmp_path)
    assert own.status() == own.wait(1.0) == own.final() == END
    assert [note["reason"] for note in own.notes()] == ["Completed"]
    assert (own.pids(), backend.looked) == ({}, 0)


@pytest.mark.parametrize(
    ("status", "final"),
    [
        (END, True),
        ({**END, "phase": "Failed", "ranks": [{"phase": "Running"}]}, True),
        ({**END, "phase": "Running", "ranks": [{"phase": "Succeeded"}]}, False),
        ({**END, "name": '"phase": "Failed"', "phase": "Stopping"}, False),
        ({}, False),
    ],
)
def test_the_last_status_is_known_by_its_beginning(status, final, tmp_path):
    assert not is_final(tmp_path)
    for indent in (1, None):
        (tmp_path / "status.json").write_text(json.dumps(status, indent=indent))
        assert is_final(tmp_path) is final


def test_an_end_is_heard_though_nobody_can_say_for_a_while_where_the_master_is(tmp_path):
    own = job(backend := Silent(2, lambda: ends(tmp_path)), tmp_path)
    assert own.status() == END
    assert backend.looked == 3


def test_a_long_silence_is_told_and_not_taken_for_a_lost_master(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "LOST_S", 0.1)
    own = job(Silent(float("inf")), tmp_path)
    with pytest.raises(UnreachableError, match="the Ray of PrimeMaster of j does not answer"):
        own.status()


async def test_a_gcs_that_does_not_answer_is_no_word_on_the_actor(monkeypatch):
    def silent(*_: object) -> None:
        raise GetTimeoutError("after 60 s")

    monkeypatch.setattr(ray, "get_actor", silent)
    with pytest.raises(ActorLostError) as caught:
        await RayBackend().lookup("eeeeeeee/master")
    assert not caught.value.certain


@pytest.mark.parametrize("leaves", [True, False])
def test_the_next_attempt_waits_for_a_master_that_leaves_and_ends_one_that_stays(tmp_path, monkeypatch, leaves):
    monkeypatch.setattr(launch, "LEAVES_S", 60.0 if leaves else 0.2)
    backend, name = Silent(), f"{UID[:8]}/master"
    backend.hosts[name] = MemoryHost(name, "n1")
    if leaves:
        backend._then = lambda: backend.looked > 2 and backend.hosts.pop(name, None)
    job(backend, tmp_path).let_leave()
    assert name not in backend.hosts
    assert (f"kill {name}" in backend.calls) is not leaves


def test_a_master_that_answered_is_asked_again_without_a_look_and_looked_up_once_it_is_lost(tmp_path, monkeypatch):
    own, looked, answers = job(backend := Silent(), tmp_path), list[str](), [1, 2, None, 3]

    async def find(*_: object) -> ActorRef:
        looked.append("look")
        return ActorRef("m", None)

    async def call(*_: object) -> object:
        if (answer := answers.pop(0)) is None:
            raise ActorLostError("restarts", certain=False)
        return {"phase": "Running", "version": answer}

    monkeypatch.setattr(launch, "find_commander", find)
    monkeypatch.setattr(launch, "call_commander", call)
    assert backend.looked == 0
    assert [own.status()["version"] for _ in range(2)] == [1, 2]
    assert len(looked) == 1
    assert own.status()["version"] == 3
    assert len(looked) == 2
