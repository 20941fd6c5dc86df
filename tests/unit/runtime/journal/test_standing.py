"""Where PrimeMaster is made, what its journal is written to, and what it leaves there for others."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from dljob.errors import NotFoundError
from dljob.master.state.views import NodeView
from dljob.runtime.backend.interface import ON_HEAD, ActorRef, ActorSpec
from dljob.runtime.controller.prime import leased
from dljob.runtime.job import create_master, launch
from dljob.runtime.job.launch import begin
from dljob.runtime.job.outline import outline
from dljob.runtime.journal import job_record
from dljob.runtime.journal.job_record import ENDED, ENDED_AT, bring, has_ended, read_notes, read_status, sign_off
from dljob.runtime.journal.setup import Setup
from dljob.spec.capabilities import ALL, Capability
from dljob.spec.loading.load import parse

KEPT = {"gcsFaultTolerance": {"backend": "RocksDB", "claimName": "gcs"}}
HEAD = NodeView("head", (), (), (), head=True)
WORKER = NodeView("worker", (), (), ())


ON_ANY_HEAD = (None, None, ON_HEAD)
"""What PrimeMaster prefers, avoids and takes where its journal is a folder: a later head has another node id."""
OFF_THE_HEAD = (None, "head", ())


class Values:
    """A key-value store."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    async def get(self, key: str) -> bytes | None:
        return self.held.get(key)

    async def put(self, key: str, value: bytes) -> None:
        self.held[key] = value

    async def keys(self, prefix: str) -> tuple[str, ...]:
        return tuple(sorted(key for key in self.held if key.startswith(prefix)))

    async def delete(self, prefix: str) -> int:
        found = [key for key in self.held if key.startswith(prefix)]
        for key in found:
            del self.held[key]
        return len(found)


@dataclass
class Made:
    """A backend that takes down what it is to make; the first worker comes after some looks."""

    kv: Values = field(default_factory=Values)
    specs: list[ActorSpec] = field(default_factory=list)
    looks: int = 0
    capabilities: frozenset[Capability] = ALL

    def own_node(self) -> str:
        return "head"

    async def nodes(self) -> tuple[NodeView, ...]:
        self.looks += 1
        return (HEAD,) if self.looks < 3 else (HEAD, WORKER)

    async def spawn(self, spec: ActorSpec) -> ActorRef:
        self.specs.append(spec)
        return ActorRef(spec.name, None)

    async def call(self, _ref: ActorRef, _method: str) -> int:
        return 1


def job(**spec: Any) -> str:
    role = {"name": "w", "entrypoint": {"class": "m.f"}}
    whole = {"metadata": {"name": "j"}, "spec": {"roles": [role], **spec}}
    return json.dumps({"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", **whole})


@pytest.mark.parametrize(
    ("spec", "place", "journal"),
    [
        ({}, ON_ANY_HEAD, None),
        (KEPT, OFF_THE_HEAD, "kv"),
        ({**KEPT, "master": {"placement": "Head"}}, ("head", None, ()), "kv"),
        ({"master": {"placement": "Worker"}}, OFF_THE_HEAD, "kv"),
        ({**KEPT, "master": {"journal": {"path": "/j"}}}, ON_ANY_HEAD, None),
    ],
)
def test_the_master_is_placed_by_journal_and_kind_of_cluster(spec, place, journal, tmp_path, monkeypatch):
    made = Made()
    monkeypatch.setattr(launch, "factory", lambda _name: lambda _options: made)
    monkeypatch.setattr(create_master, "NODES_S", 0.0)
    begin(outline(job(**spec)), job_dir=tmp_path, code_dir=None, uid="a" * 32, apart=True)
    (actor,) = made.specs
    assert (actor.prefer, actor.avoid, actor.resources) == place
    assert (actor.args[0].options.get("journal"), actor.args[0].roams) == (journal, bool(spec))
    assert made.looks == (3 if place == OFF_THE_HEAD else 1)


def test_on_a_laptop_head_and_workers_are_one_machine(tmp_path, monkeypatch):
    made = Made()
    monkeypatch.setattr(launch, "factory", lambda _name: lambda _options: made)
    begin(outline(job(**KEPT)), job_dir=tmp_path, code_dir=None, uid="a" * 32)
    order = made.specs[0].args[0]
    assert (made.specs[0].resources, order.roams, order.launcher) == (ON_HEAD, False, "head")


def test_the_end_of_an_earlier_attempt_is_not_that_of_this_one(tmp_path, monkeypatch):
    made, uid = Made(), "a" * 32
    made.kv.held = {ENDED + uid: b"{}", ENDED + "b" * 32: b"{}"}
    monkeypatch.setattr(launch, "factory", lambda _name: lambda _options: made)
    begin(outline(job()), job_dir=tmp_path, code_dir=None, uid=uid, attempt=2)
    assert [key for key in made.kv.held if key.startswith(ENDED)] == [ENDED + "b" * 32]


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [({}, 30), (KEPT, 120), ({**KEPT, "faultTolerance": {"leaseSeconds": 45}}, 45)],
)
def test_the_lease_outlasts_the_replacement_of_a_head(spec, seconds):
    assert leased(parse(json.loads(job(**spec))).spec).fault_tolerance.lease == seconds


async def test_files_a_master_left_on_another_node_are_brought_here_once(tmp_path):
    kv, uid, folder = Values(), "b" * 32, tmp_path / "there"
    await kv.put(f"dljob/{uid}/spec", b"{}")
    info: Any = type("Info", (), {"uid": uid, "dir": str(folder)})()
    setup = Setup(info, None, None, roams=True)  # type: ignore[arg-type]
    assert not await has_ended(kv, uid, folder)  # type: ignore[arg-type]
    await sign_off(kv, setup, {"phase": "Succeeded"}, [{"seq": 1, "reason": "Completed"}])  # type: ignore[arg-type]
    assert [key for key in kv.held if uid in key and not key.startswith(ENDED_AT)] == [ENDED + uid]
    assert await has_ended(kv, uid, folder)  # type: ignore[arg-type]
    assert (read_status(folder)["phase"], read_notes(folder)[0]["reason"]) == ("Succeeded", "Completed")
    (folder / "status.json").write_text('{"phase": "Failed"}')
    assert await bring(kv, uid) == folder  # type: ignore[arg-type]
    assert read_status(folder)["phase"] == "Failed"


async def test_a_ray_keeps_the_newest_ends_and_no_more(monkeypatch):
    monkeypatch.setattr(job_record, "ENDS_KEPT", 2)
    kv, uids = Values(), [f"{n:032x}" for n in (4, 3, 2, 1)]
    for n, uid in enumerate(uids):
        monkeypatch.setattr(time, "time_ns", lambda n=n: (n + 1) * 10**18)
        info: Any = type("Info", (), {"uid": uid, "dir": "/nowhere"})()
        await sign_off(kv, Setup(info, None, None, roams=True), {"phase": "Failed"}, [])  # type: ignore[arg-type]
    assert await kv.keys(ENDED) == tuple(sorted(ENDED + uid for uid in uids[-2:]))
    assert len(await kv.keys(ENDED_AT)) == 2


def test_a_job_attached_after_its_end_tells_its_end(tmp_path, monkeypatch):
    made, uid, folder = Made(), "d" * 32, tmp_path / "there"
    left = {"dir": str(folder), "status": {"name": "j", "phase": "Succeeded"}, "notes": []}
    made.kv.held[ENDED + uid] = json.dumps(left).encode()
    monkeypatch.setattr(launch, "factory", lambda _name: lambda _options: made)
    found = launch.attach(uid)
    assert (found.name, found.dir, found.status()["phase"]) == ("j", folder, "Succeeded")
    with pytest.raises(NotFoundError):
        launch.attach("j")


async def test_an_end_that_lies_on_a_shared_volume_is_kept_nowhere_else():
    kv, uid = Values(), "c" * 32
    info: Any = type("Info", (), {"uid": uid, "dir": "/nowhere"})()
    await sign_off(kv, Setup(info, None, None), {"phase": "Failed"}, [])  # type: ignore[arg-type]
    assert not kv.held
