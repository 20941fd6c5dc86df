"""The actor class that workers import: it stays light, and offers what PrimeMaster does."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from master_shell_kit import HANG_S, UID, World
from memory_backend import MemoryBackend, MemoryHost

from dljob.errors import NotFoundError
from dljob.master.placement import takeover
from dljob.master.state.events import Carried, HangFound
from dljob.plan.plan import plan
from dljob.runtime.backend.interface import ActorLostError, ActorRef
from dljob.runtime.controller import prime, prime_actor
from dljob.runtime.journal.setup import Setup
from dljob.runtime.process.messages import JobInfo
from dljob.spec.model import DLJobManifest


def methods(cls: type) -> dict[str, str]:
    found = inspect.getmembers(cls, inspect.iscoroutinefunction)
    return {name: str(inspect.signature(method)) for name, method in found if not name.startswith("_")}


def test_the_actor_has_all_methods_of_primemaster():
    assert methods(prime_actor.PrimeMaster) == methods(prime.MasterServer)
    assert "beacon" in methods(prime_actor.PrimeMaster)


def test_each_attempt_has_a_journal_of_its_own_on_a_volume(tmp_path):
    """Else attempt 2 would replay the end of attempt 1, and be over at once."""
    roles = [{"name": "w", "entrypoint": {"class": "m.C"}}]
    spec = {"roles": roles, "master": {"journal": {"path": str(tmp_path)}}}
    manifest = DLJobManifest.model_validate({"metadata": {"name": "j"}, "spec": spec})
    info = JobInfo("a" * 32, "j", "/home", "dljob", "m", 30, 0.2, "", (("w", 1),))
    setup = Setup(info, manifest.spec, plan(manifest))
    order = prime.MasterOrder(info.uid, "/home", "", "dljob", "ray")
    stores = [prime._store(replace(order, attempt=n), setup, MemoryBackend()) for n in (1, 2)]
    assert [store.place for store in stores] == [str(tmp_path / "j-aaaaaaaa"), str(tmp_path / "j-aaaaaaaa.2")]


async def test_the_handover_of_the_last_attempt_is_read_before_it_is_noted(tmp_path):
    roles = [{"name": "w", "entrypoint": {"class": "m.C"}}]
    (tmp_path / "spec.json").write_text(json.dumps({"metadata": {"name": "j"}, "spec": {"roles": roles}}))
    order = prime.MasterOrder("a" * 32, str(tmp_path), "", "dljob", "ray", attempt=2)
    assert (await prime._setup(order, MemoryBackend())).carried is None
    handed = json.dumps({"job": order.uid, "attempt": 1, "step": 7, "state": {"v": 1, "restarts": {"Role": 2}}})
    made = await prime._setup(replace(order, carried=handed), MemoryBackend())
    assert made.carried == Carried(1, restarts=(("Role", 2),), step=7)
    torn = await prime._setup(replace(order, carried=handed[:-1]), MemoryBackend())
    assert torn.carried is not None
    assert torn.carried.why


@pytest.mark.parametrize(("launcher", "kept"), [("n1", False), ("n2", True), ("", True)])
async def test_the_end_of_a_job_is_kept_for_a_launcher_on_another_node(launcher, kept, tmp_path):
    roles = [{"name": "w", "entrypoint": {"class": "m.C"}}]
    (tmp_path / "spec.json").write_text(json.dumps({"metadata": {"name": "j"}, "spec": {"roles": roles}}))
    backend = MemoryBackend()
    backend.own_node = lambda: "n1"
    order = prime.MasterOrder("a" * 32, str(tmp_path), "", "dljob", "ray", launcher=launcher)
    assert (await prime._setup(order, backend)).roams is kept


@pytest.mark.parametrize("gcs", [True, False])
async def test_a_master_that_is_done_goes_though_nobody_can_say_who_is_there(gcs, monkeypatch):
    went: list[str] = []
    monkeypatch.setattr(prime, "_end", lambda _code, why: went.append(why))
    monkeypatch.setattr(prime, "ANSWER_S", 0.05)
    backend, order = MemoryBackend(), prime.MasterOrder("a" * 32, "/nowhere", "", "dljob", "memory")
    name = prime.actor_name(order.uid)
    backend.hosts[name] = MemoryHost(name, "n1")
    if not gcs:
        monkeypatch.setattr(backend, "lookup", _unsure)
    master = object.__new__(prime.MasterServer)
    master._order, master._clients, master._pair = order, 0, None
    master._close_log = lambda: went.append("the log is written")
    await master._leave(backend)
    assert (name in backend.hosts, went) == (not gcs, ["the log is written", "the job is over"])


class ProcessEndError(BaseException):
    """The process is gone."""


class CommandingHost(MemoryHost):
    """The other PrimeMaster, which commands."""

    async def follow(self, _segment: int) -> dict[str, bool]:
        return {"commands": True}


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("other", [True, False])
async def test_a_master_that_cannot_begin_leaves_the_keys_of_the_job_to_the_other_one(
    number, other, tmp_path, monkeypatch, caplog
):
    """Its node may lack an extension that the spec names, or the folder of the job."""
    backend, order = MemoryBackend(), prime.MasterOrder("a" * 32, str(tmp_path), "", "memory", "memory", number=number)
    if other:
        name = prime.actor_name(order.uid, 3 - number)
        backend.hosts[name] = CommandingHost(name, "n1")
    keys = {f"dljob/jobs/{order.uid}": b"{}", f"dljob/{order.uid}/journal/000001/000000000000": b""}
    backend.kv.values |= keys
    codes: list[int] = []

    def end(code: int, _why: str) -> None:
        codes.append(code)
        raise ProcessEndError

    monkeypatch.setattr(prime, "factory", lambda _: lambda _options: backend)
    monkeypatch.setattr(prime, "_end", end)
    monkeypatch.setattr(takeover, "AGAIN_S", 0.0)
    monkeypatch.setattr(prime, "ANSWER_S", 0.0)
    master = prime.MasterServer(order)
    await asyncio.wait([master._main])
    assert isinstance(master._main.exception(), ProcessEndError)
    assert (codes, backend.kv.values) == (([70], keys) if other else ([0], {}))
    assert "has no spec" in caplog.text
    if not other:
        with pytest.raises(NotFoundError, match="has no spec"):
            await master.hello()


async def test_a_standby_ends_with_its_raylet_before_it_has_claimed_anything(tmp_path, monkeypatch):
    world, claims, raylet, writer = World(tmp_path), asyncio.Event(), *os.pipe()
    ended = asyncio.get_running_loop().create_future()

    async def setup(*_: object) -> Setup:
        return world.setup(master={"standby": "Always"})

    async def until_claimed() -> None:
        claims.set()
        await asyncio.Event().wait()

    def end(code: int, why: str) -> None:
        ended.get_loop().call_soon_threadsafe(ended.set_result, (code, why))
        threading.Event().wait()  # the guard's thread does nothing more

    monkeypatch.setattr(prime, "factory", lambda _: lambda _options: world.backend)
    monkeypatch.setattr(prime, "_setup", setup)
    monkeypatch.setattr(prime, "_pair", lambda *_: SimpleNamespace(until_claimed=until_claimed))
    monkeypatch.setattr(prime, "raylet_pidfd", lambda: raylet)
    monkeypatch.setattr(prime, "_end", end)
    master = prime.MasterServer(prime.MasterOrder(UID, str(tmp_path), "", "memory", "memory", number=2))
    await claims.wait()
    os.close(writer)  # a pidfd is readable as well once its process is gone
    async with asyncio.timeout(HANG_S):
        assert await ended == (70, "the raylet of this node is gone")
    master._main.cancel()
    os.close(raylet)


async def _unsure(_name: str) -> None:
    raise ActorLostError("no answer", certain=False)


def test_the_module_of_the_actor_imports_nothing_heavy():
    code = "import sys, dljob.runtime.controller.prime_actor; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"ray", "pydantic", "dljob.runtime.controller.prime", "dljob.spec.model", "asyncio"} & set(loaded)


async def test_keepers_of_queues_tell_their_pids_but_for_those_that_have_ended():
    class Keepers(MemoryBackend):
        async def actors(self, prefix: str) -> tuple[str, ...]:
            return tuple(f"{prefix}{name}" for name in ("gone", "groups", "lost"))

        async def lookup(self, name: str) -> Any:
            return None if name.endswith("gone") else ActorRef(name, name)

        async def call(self, ref: ActorRef, method: str, *args: Any) -> Any:
            if ref.name.endswith("lost"):
                raise ActorLostError("it was killed")
            return {"pid": 300}[method]

    assert await prime._keepers(Keepers(), "aaaaaaaa/") == {"queue/groups": 300}


async def test_a_callee_that_is_late_is_found_to_hang_unless_it_is_another_process_by_now():
    events: list[HangFound] = []

    async def offer(event: HangFound) -> None:
        events.append(event)

    shell = SimpleNamespace(state=SimpleNamespace(ranks={("reward", 0): SimpleNamespace(incarnation=2)}), offer=offer)

    async def ready() -> Any:
        return shell

    master = object.__new__(prime.MasterServer)
    master._ready = ready
    asked = [
        await master.late_callee(("reward", *which), "late", "r.py:9 in score", "t/0")
        for which in ((0, 2), (0, 1), (1, 1))
    ]
    assert asked == [True, True, False]
    assert events == [HangFound("reward", 0, 2, "Hang", "late", by="t/0", line="r.py:9 in score")]
