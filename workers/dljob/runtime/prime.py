"""PrimeMaster, the actor: one per job, detached, restarted by Ray as often as it dies, found by its name.

It begins its work from `__init__` and waits for no caller. This module must stay light (no torch): the time that it
takes to import is time without a master.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from dljob.errors import NotFoundError
from dljob.master import events as ev
from dljob.master.carry import carried
from dljob.master.status import placement
from dljob.master.views import Clue
from dljob.plan.plan import plan
from dljob.runtime import extensions, parting
from dljob.runtime.backend import Backend, factory
from dljob.runtime.core import core
from dljob.runtime.entries import SPEC, MasterOrder, forget, master_name
from dljob.runtime.guard import boot_id, raylet_pidfd
from dljob.runtime.journal import FencedError
from dljob.runtime.looks import stacks_of
from dljob.runtime.messages import Beacon, BeaconReply, JobInfo, Peer, RoleTable
from dljob.runtime.muster import MusterDesk
from dljob.runtime.peers import peer, role_table
from dljob.runtime.saves import SaveDesk
from dljob.runtime.setup import Setup
from dljob.runtime.shell import Shell, until
from dljob.runtime.stores import FileStore, JournalStore, KeyValueStore
from dljob.spec.capabilities import Capability
from dljob.spec.model import DLJobManifest, DLJobSpec
from dljob.spec.standing import lease_seconds

BEACON_S = 0.2
GUARD_S = 0.25
ANSWER_S = 2.0
"""How long a master that is done waits for those who wait for it to have heard so."""
LONGEST_S = 30.0
"""No long poll is longer; the caller asks again."""


class PrimeMaster:
    """The actor. Its methods answer hosts and clients; the work is the shell's."""

    def __init__(self, order: MasterOrder) -> None:
        self._order = order
        self._clients = 0
        self._desk = SaveDesk()
        self._musters = MusterDesk()
        loop = asyncio.get_running_loop()
        self._made: asyncio.Future[Shell] = loop.create_future()
        self._main = loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            backend: Backend = factory(self._order.backend)(self._order.options)
        except Exception as error:  # noqa: BLE001 - whatever it is, who made this master hears it
            self._made.set_exception(error)
            return
        try:
            setup = await _setup(self._order, backend)
            shell = Shell(setup, backend, _store(self._order, setup, backend))
            self._made.set_result(shell)
            self._parting = asyncio.create_task(parting.serve(shell, self._order.uid))
            if Capability.PROCESSES in backend.capabilities:
                _Guard(shell)
            await shell.run()
        except FencedError as error:
            _end(0, str(error))
        except Exception as error:  # noqa: BLE001 - Ray would restart for ever a master that only ends itself
            if not self._made.done():
                self._made.set_exception(error)
            await forget(backend.kv, self._order.uid)
        await self._leave(backend)

    async def _leave(self, backend: Backend) -> None:
        """Let the answers out, then go for good."""
        loop = asyncio.get_running_loop()
        end = loop.time() + ANSWER_S
        while self._clients and loop.time() < end:  # noqa: ASYNC110 - for at most two seconds, once in a life
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        with suppress(Exception):
            me = await backend.lookup(master_name(self._order.uid))
            if me is not None:
                await backend.kill(me)
        await asyncio.sleep(ANSWER_S)
        _end(0, "the job is over")

    async def _ready(self) -> Shell:
        """The shell, once the state is rebuilt."""
        shell = await asyncio.shield(self._made)
        if not shell.recovered and shell.final is None:
            await until(shell.changed, lambda: shell.recovered or shell.final is not None, None)
        return shell

    # -- what hosts ask

    async def beacon(self, beacon: Beacon) -> BeaconReply:
        """Take progress, renew a lease."""
        if not self._made.done():
            return BeaconReply(0, known=True)
        return self._made.result().heard(beacon)

    async def peers(self, role: str) -> RoleTable:
        """All ranks of a role."""
        return role_table((await self._ready()).state, role)

    async def await_peer(self, role: str, rank: int, after: int) -> Peer:
        """A rank, once it is ready in an incarnation greater than `after`, or will never be back."""
        shell = await self._ready()

        def look() -> Peer:
            return peer(shell.state, role, rank)

        await until(shell.changed, lambda: _there(look(), after), None)
        return look()

    async def saves(self, question: dict[str, Any], node: str) -> dict[str, Any]:
        """What a node's saver asks of checkpoints (`runtime.checkpoint.book`)."""
        return await self._desk.answer(await asyncio.shield(self._made), question, node)

    async def muster(self, question: dict[str, Any]) -> dict[str, Any]:
        """What a member of a collective group asks (`runtime.muster`)."""
        return await self._musters.answer(await self._ready(), question)

    # -- what clients ask

    async def hello(self) -> int:
        """The first answer: the journal is claimed and the state is known. Its pid."""
        await self._ready()
        return os.getpid()

    @asynccontextmanager
    async def _client(self) -> AsyncGenerator[Shell]:
        self._clients += 1
        try:
            yield await self._ready()
        finally:
            self._clients -= 1

    async def status(self, after_version: int = 0, timeout_s: float = 0.0) -> dict[str, Any]:
        """The status, as soon as its version is greater; at the latest after the timeout, or when the job is over."""
        async with self._client() as shell:
            await _newer(shell, after_version, timeout_s)
            return shell.status()

    async def brief(self, after_version: int = 0, timeout_s: float = 0.0) -> dict[str, Any]:
        """The status without ranks and units, under the same terms."""
        async with self._client() as shell:
            await _newer(shell, after_version, timeout_s)
            return shell.brief()

    async def placement(self) -> dict[str, Any]:
        """Which node holds which units and ranks."""
        async with self._client() as shell:
            return {**placement(shell.state), "version": shell.version}

    async def notes(self, after_seq: int = 0, timeout_s: float = 0.0) -> list[dict[str, Any]]:
        """The notes with a greater number, as soon as there are some; at the latest after the timeout."""
        async with self._client() as shell:
            wait = min(timeout_s, LONGEST_S)
            await until(shell.changed, lambda: shell.final is not None or shell.timeline.seq > after_seq, wait)
            return shell.timeline.after(after_seq)

    async def command(self, id: str, kind: str, target: str = "job", by: str = "") -> None:  # noqa: A002
        """Take an order from outside; it is in the journal when this returns, and the same id happens once."""
        async with self._client() as shell:
            if shell.final is None:
                whom, _, count = target.partition("=") if kind == "scale" else (target, "", "")
                await shell.offer(ev.Commanded(id, kind, whom, by, int(count) if count.isdecimal() else 0))

    async def learned(self, target: str, incarnation: int, clue: Clue) -> None:
        """Take evidence of a rank's end from outside; it is in the journal when this returns."""
        async with self._client() as shell:
            if shell.final is None:
                await shell.offer(ev.CauseLearned(target, (clue,), incarnation))

    async def wait(self, timeout_s: float = LONGEST_S) -> dict[str, Any] | None:
        """The final status; None when the job is not over after the timeout."""
        async with self._client() as shell:
            await until(shell.changed, lambda: shell.final is not None, min(timeout_s, LONGEST_S))
            return shell.final

    async def stacks(self, target: str = "job") -> dict[str, str]:
        """Rank -> what its node sees of its process now: the stacks of all threads, or why there are none."""
        async with self._client() as shell:
            return await stacks_of(shell.backend, shell.state, target)

    async def pids(self) -> dict[str, int]:
        """The process of the master and of each rank that has one."""
        async with self._client() as shell:
            ranks = shell.state.ranks.items()
            live = {f"{role}/{rank}": own.pid for (role, rank), own in ranks if own.phase.live and own.pid}
            return {"master": os.getpid(), **live}


async def _newer(shell: Shell, version: int, timeout_s: float) -> None:
    """Wait for a greater version or the job's end; no longer than the timeout."""
    wait = min(timeout_s, LONGEST_S)
    await until(shell.changed, lambda: shell.final is not None or shell.version > version, wait)


def _there(seen: Peer, after: int) -> bool:
    return bool(seen.gone) or (seen.ready and seen.incarnation > after)


async def _setup(order: MasterOrder, backend: Backend) -> Setup:
    """The spec from the key-value store, or from the job's folder, and the plan that follows from it."""
    text = await backend.kv.get(f"dljob/{order.uid}/spec")
    if text is None:
        path = Path(order.dir) / SPEC
        if not path.is_file():
            raise NotFoundError(f"job {order.uid} has no spec, neither in the key-value store nor at {path}")
        text = path.read_bytes()
    manifest = DLJobManifest.model_validate(json.loads(text))
    spec = leased(manifest.spec)
    extensions.check(spec, order.code_dir)
    made = plan(manifest)
    info = JobInfo(
        uid=order.uid,
        name=manifest.metadata.name,
        dir=order.dir,
        namespace=order.namespace,
        master=master_name(order.uid),
        lease_s=spec.fault_tolerance.lease,
        beacon_s=BEACON_S,
        code_dir=order.code_dir,
        roles=tuple((name, role.replicas) for name, role in made.roles.items()),
        attempt=order.attempt,
        boot=await _boot(order, backend),
        **_saving(spec),
    )
    handed = carried(order.carried, order.uid, order.attempt) if order.carried else None
    # Where it may end elsewhere than it begins, it roams already.
    roams = order.roams or order.launcher != backend.here()
    return Setup(info, spec, made, order.own_nodes, handed, roams, core())


def leased(spec: DLJobSpec) -> DLJobSpec:
    """The spec with the lease that holds for it."""
    policy = spec.fault_tolerance
    lease = lease_seconds(policy.lease_seconds, survives=spec.gcs_fault_tolerance is not None)
    return spec.model_copy(update={"fault_tolerance": policy.model_copy(update={"lease_seconds": lease})})


async def _boot(order: MasterOrder, backend: Backend) -> str:
    """The boot id of this machine, when the cluster has no other, and none is to come."""
    with suppress(Exception):  # who cannot be asked now may have others
        if not order.own_nodes and len({node.ip for node in await backend.nodes()}) == 1:
            return boot_id()
    return ""


def _saving(spec: DLJobSpec) -> dict[str, Any]:
    """What ranks and savers are told of `spec.checkpoint`."""
    said = spec.checkpoint
    if said is None:
        return {}
    return {
        "save_on_exit": said.save_on_exit,
        "peer_copy": said.peer_copy,
        "save_grace_s": said.grace_period_seconds,
    }


def _store(order: MasterOrder, setup: Setup, backend: Backend) -> JournalStore:
    """The file, unless the backend's options say `journal: kv`.

    A volume outlives attempts, and an attempt that has ended must not be the end of the next one.
    """
    if order.options.get("journal") == "kv":
        return KeyValueStore(backend.kv, f"dljob/{order.uid}/journal/")
    path = setup.spec.master.journal.path
    if not path:
        return FileStore(setup.folder / "journal")
    name = f"{setup.info.name}-{order.uid[:8]}"
    return FileStore(Path(path) / (name if order.attempt == 1 else f"{name}.{order.attempt}"))


class _Guard:
    """Ends the master at once when its raylet is gone or a later epoch is claimed: its successor may live already."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._raylet = raylet_pidfd()
        threading.Thread(target=self._watch, name="dljob-guard", daemon=True).start()

    def _watch(self) -> None:
        watched = [self._raylet] if self._raylet is not None else []
        while True:
            ready, _, _ = select.select(watched, [], [], GUARD_S)
            if ready:
                _end(70, "the raylet of this node is gone")
            journal = self._shell.journal
            with suppress(OSError):
                if journal.epoch and journal.store.superseded_now(journal.epoch):
                    _end(0, f"epoch {journal.epoch} is over: a later master has claimed the job")


def _end(code: int, why: str) -> NoReturn:
    with suppress(OSError):
        os.write(2, f"[dljob] PrimeMaster, pid {os.getpid()}, ends: {why}\n".encode())
    os._exit(code)
