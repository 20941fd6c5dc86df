"""What ranks have copied comes to disk on order: every saver of the job is asked, and what is wrong is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from executor_kit import INFO, executor_of
from memory_backend import MemoryBackend, MemoryHost

from dljob.errors import DLJobError
from dljob.master.state import actions as ac
from dljob.master.state import events as ev
from dljob.runtime.checkpoint import saver_peers
from dljob.runtime.checkpoint.saver_peers import PeerLink, next_in_ring
from dljob.runtime.process.messages import saver_name


class Saver(MemoryHost):
    """Answers as it is told to."""

    answer = ""

    async def flush(self, timeout_s: float, alive: bool) -> str:
        self.orders.append(("flush", (timeout_s, alive)))
        return self.answer

    async def bring(self, timeout_s: float, folder: str) -> str:
        self.orders.append(("bring", (timeout_s, folder)))
        return self.answer


async def told(backend: MemoryBackend) -> list[Any]:
    """What PrimeMaster hears after the order."""
    heard: list[Any] = []
    done = asyncio.Event()

    async def offer(*events: Any) -> None:
        heard.extend(events)
        if isinstance(events[-1], ev.CopiesSaved):
            done.set()

    made = executor_of(backend, offer)
    made.execute([ac.SaveCopies("n1", 7.0)])
    async with asyncio.timeout(60):
        await done.wait()
    made.close()
    return heard


def savers(backend: MemoryBackend, *nodes: str) -> list[Saver]:
    made = [Saver(saver_name(INFO, node), node) for node in nodes]
    backend.hosts.update({saver.name: saver for saver in made})
    backend.hosts["01234567/w/0/1"] = Saver("01234567/w/0/1", "n1")
    return made


async def test_every_saver_is_asked_for_all_that_it_holds_and_what_is_free_is_told_first():
    backend = MemoryBackend()
    made = savers(backend, "n1", "n2")
    assert await told(backend) == [ev.NodesSeen(await backend.nodes()), ev.CopiesSaved("n1")]
    assert [saver.orders for saver in made] == [[("flush", (7.0, True))]] * 2
    assert not backend.hosts["01234567/w/0/1"].orders


@pytest.mark.parametrize("dead", [True, False])
async def test_a_savers_failure_is_told(dead):
    backend = MemoryBackend()
    made = savers(backend, "n1", "n2")
    made[1].answer, made[1].dead = "the disk is full", dead
    (saved,) = [event for event in await told(backend) if isinstance(event, ev.CopiesSaved)]
    assert saved.why == (f"{made[1].name} does not answer (ActorLostError)" if dead else "the disk is full")


async def test_without_copies_the_save_is_done_at_once():
    class Blind(MemoryBackend):
        async def nodes(self) -> Any:
            raise DLJobError("nobody knows")

    assert await told(Blind()) == [ev.CopiesSaved("n1")]


async def test_at_the_end_savers_bring_what_they_hold_then_what_they_keep_for_nodes_that_are_gone():
    backend = MemoryBackend()
    made = savers(backend, "n1", "n2")

    executor = executor_of(backend)
    async with asyncio.timeout(60):
        await executor.clear()
    executor.close()
    flush, bring = ("flush", (INFO.save_grace_s, True)), ("bring", (INFO.save_grace_s, ""))
    assert [saver.orders[:2] for saver in made] == [[flush, bring]] * 2


def test_the_peer_is_the_next_one_in_the_ring_and_after_one_that_does_not_answer_the_next():
    assert [next_in_ring(mine, "abc") for mine in "abc"] == ["b", "c", "a"]
    assert [next_in_ring("a", "abc", after) for after in "bc"] == ["c", "b"]
    assert next_in_ring("b", "ab", "a") == "a"
    assert next_in_ring("a", "a") == ""


def test_ranks_of_a_role_that_is_called_saver_are_no_agents(monkeypatch):
    mine, peer = saver_name(INFO, "n" * 56), saver_name(INFO, "p" * 56)
    rank, store = f"{INFO.uid[:8]}/saver/0/1", f"{INFO.uid[:8]}/saver/store/1"
    monkeypatch.setattr(
        saver_peers, "list_named_actors", lambda **_: [{"name": name} for name in (mine, rank, store, peer)]
    )
    monkeypatch.setattr(saver_peers.ray, "get_actor", lambda name, _namespace: name)
    assert PeerLink(INFO, "n" * 56).other_savers() == [peer]
