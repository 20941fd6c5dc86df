"""What is in the memory of one node alone has a copy on a peer node: the node vanishes, the step does not."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import Rank, a_saver, client, place
from saver_kit import WITHIN_S, Node, Straight

from dljob.errors import UsageError
from dljob.linux import memory_limit
from dljob.runtime.checkpoint import client as client_module
from dljob.runtime.checkpoint.carrying import PIECE
from dljob.runtime.checkpoint.files import Folder
from dljob.runtime.checkpoint.saver import Saver

BYTES = 2 * PIECE + 12_345


def body(*steps: int, persist: bool = False) -> Any:
    """Saves these, then stays."""

    def saves(mine: Any, tell: Any) -> None:
        for step in steps:
            mine.save(step, {"step": step, "bytes": bytes([step]) * BYTES}, persist=persist)
        tell("saved")
        signal.pause()

    return saves


def loads(mine: Any, tell: Any) -> None:
    step, state = mine.load() or (0, {"step": 0, "bytes": b""})
    tell(f"{step} {state['bytes'] == bytes([step]) * BYTES}")


def loads_and_saves(step: int) -> Any:
    def body(mine: Any, tell: Any) -> None:
        found = (mine.load() or (0,))[0]
        mine.save(step, {"step": step}, persist=False)
        tell(f"{found}")
        signal.pause()

    return body


def whole(folder: Path) -> list[int]:
    return [found.mark.step for found in Folder(folder).candidates() if not found.bad]


def kept(saver: Saver) -> list[int]:
    """The steps that it keeps for another node, oldest first."""
    with saver.keeper._changed:
        return [head.step for held in saver.keeper.copies_of() if (head := held.slots[0].head)]


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    made = [Node() for _ in range(3)]
    yield made
    for node in made:
        node.ends()


@pytest.mark.parametrize("goes_on", [1, 2], ids=["on-the-peer", "on-a-third-node"])
def test_a_node_that_vanishes_takes_nothing_along_that_its_peer_has(tmp_path, nodes, goes_on):
    owner, peer, _ = nodes
    owner.peer = peer
    rank = Rank(place(owner, tmp_path), body(1, 2, 3))
    assert rank.heard() == "saved"
    peer.has("trainer/0", 3)
    owner.vanishes()
    rank.kill()
    assert not tmp_path.exists() or Folder(tmp_path).marks() == []
    here = nodes[goes_on]
    here.others = [node for node in nodes[1:] if node is not here]
    again = Rank(place(here, tmp_path, number=2, incarnation=2), loads)
    assert again.heard() == "3 True"
    assert again.wait() == 0


def test_a_node_that_a_world_comes_back_to_does_not_take_what_it_has_of_long_ago(tmp_path, nodes):
    """Life 1 was on the peer, life 2 on a node that vanishes: what the peer keeps of it is newer than its own copy."""
    owner, peer, third = nodes
    owner.peer, owner.others, peer.others = peer, [peer], [third]
    first = Rank(place(peer, tmp_path), body(1))
    assert first.heard() == "saved"
    first.kill()
    second = Rank(place(owner, tmp_path, number=2, incarnation=2), body(2, 3))
    assert second.heard() == "saved"
    peer.has("trainer/0", 3)
    owner.vanishes()
    second.kill()
    third_life = Rank(place(peer, tmp_path, number=3, incarnation=3), loads)
    assert third_life.heard() == "3 True"
    assert third_life.wait() == 0


def test_only_a_world_whose_last_life_was_here_as_a_whole_goes_on_without_asking_others(tmp_path):
    asked: list[int] = []
    with a_saver(lambda _: asked.append(1)) as (saver, _):
        for number, times in ((1, 0), (2, 0), (4, 1)):
            life = Rank(place(saver, tmp_path, number=number, incarnation=number), loads_and_saves(number))
            assert life.heard() == f"{max(0, number - 1 - times)}"
            life.kill()
            assert len(asked) == times


def test_a_world_over_two_nodes_goes_on_from_a_step_of_which_one_part_was_only_with_the_peer(tmp_path, nodes):
    """The peer is the node of the other rank, which has a newer step: of that the lost node had told nobody."""
    owner, peer, third = nodes
    owner.peer, peer.others, third.others = peer, [third], [peer]
    first = Rank(place(owner, tmp_path, rank=0, world=2), body(1, 2))
    assert first.heard() == "saved"
    peer.has("trainer/0", 2)
    second = Rank(place(peer, tmp_path, rank=1, world=2), body(2, 3))
    assert second.heard() == "saved"
    owner.vanishes()
    for rank in (first, second):
        rank.kill()
    again = [
        Rank(place(where, tmp_path, rank=rank, world=2, number=2), loads) for rank, where in ((0, third), (1, peer))
    ]
    assert [rank.heard() for rank in again] == ["2 True", "2 True"]
    assert [rank.wait() for rank in again] == [0, 0]
    assert whole(tmp_path) == [2]


def test_the_peer_forgets_a_copy_that_is_on_disk(tmp_path):
    with a_saver() as (peer, _):
        post = Straight(peer)
        with a_saver(post=post) as (owner, _):
            mine = client(place(owner, tmp_path))
            mine.save(1, {"a": 1}, persist=False)
            mine.save(2, {"a": 2}, persist=False)
            post.until(lambda: (2, "") in post.said)
            mine.wait(WITHIN_S, everything=True)
            sent = {step for step, said in post.said if not said}
            post.until(lambda: set(post.forgotten) == sent)
            assert kept(peer) == []
            mine.close()


def test_a_job_that_wants_no_copies_gets_none(tmp_path):
    with a_saver() as (peer, _):
        post = Straight(peer)
        with a_saver(post=post) as (owner, _):
            alone, other = client(place(owner, tmp_path / "a", peer_copy=False)), client(place(owner, tmp_path / "b"))
            alone.save(7, {"a": 1}, persist=False)
            other.save(1, {"a": 1}, persist=False)
            post.until(lambda: (1, "") in post.said)  # they go one after the other, oldest turn first
            assert [step for step, _ in post.said] == [1]
            assert kept(peer) == [1]
            alone.close()
            other.close()


def test_the_newest_goes_first_and_the_peer_keeps_two(tmp_path):
    """While the first one is on its way three more are saved: of those only the last is sent."""
    on_its_way, go = threading.Event(), threading.Event()

    def waits(offer: Any, _at: int, data: bytes) -> bytes:
        if offer["head"]["step"] == 1:
            on_its_way.set()
            assert go.wait(WITHIN_S)
        return data

    with a_saver() as (peer, _):
        post = Straight(peer, waits)
        with a_saver(post=post) as (owner, _):
            mine = client(place(owner, tmp_path))
            mine.save(1, {"a": 1}, persist=False)
            assert on_its_way.wait(WITHIN_S)
            for step in (2, 3, 4):
                mine.save(step, {"a": step}, persist=False)
            go.set()
            for step in (4, 5, 6):
                if step > 4:
                    mine.save(step, {"a": step}, persist=False)
                post.until(lambda step=step: (step, "") in post.said)
            assert [step for step, said in post.said if not said][-3:] == [4, 5, 6]
            assert {step for step, _ in post.said} <= {1, 4, 5, 6}
            assert kept(peer) == [5, 6]
            mine.close()


def test_a_copy_that_its_rank_wrote_over_on_the_way_is_not_kept(tmp_path):
    on_its_way, go = threading.Event(), threading.Event()

    def waits(offer: Any, at: int, data: bytes) -> bytes:
        if offer["head"]["step"] == 1 and at < PIECE:
            on_its_way.set()
            assert go.wait(WITHIN_S)
        return data

    with a_saver() as (peer, _):
        post = Straight(peer, waits)
        with a_saver(post=post) as (owner, _):
            mine = client(place(owner, tmp_path))
            mine.save(1, bytes(BYTES), persist=False)
            assert on_its_way.wait(WITHIN_S)
            mine.save(2, bytes(BYTES), persist=False)
            mine.save(3, bytes(BYTES), persist=False)
            go.set()
            post.until(lambda: (3, "") in post.said)
            assert post.said[0] == (1, "it is no longer what was to be sent")
            assert kept(peer) == [3]
            mine.close()


def test_a_copy_that_arrives_corrupt_is_not_kept_and_saving_goes_on(tmp_path):
    def harms(offer: Any, at: int, data: bytes) -> bytes:
        return data[:-1] + b"\x77" if offer["head"]["step"] == 1 and at > PIECE else data

    with a_saver() as (peer, _):
        post = Straight(peer, harms)
        with a_saver(post=post) as (owner, told):
            mine = client(place(owner, tmp_path))
            for step in (1, 2):
                mine.save(step, bytes(BYTES), persist=False)
                post.until(lambda step=step: step in [one for one, _ in post.said])
            assert post.said == [(1, "it arrived corrupt"), (2, "")]
            assert told.of("NoPeer") == ["trainer/0: no copy of step 1 on a peer node: it arrived corrupt"]
            assert kept(peer) == [2]
            mine.close()


def test_a_peer_without_room_is_said_once_and_is_no_error(tmp_path, monkeypatch):
    free = memory_limit.free  # the ranks' own look names the control groups
    monkeypatch.setattr(memory_limit, "free", lambda *at: free(*at) if at else (BYTES, "in this container"))
    with a_saver() as (peer, _):
        post = Straight(peer)
        with a_saver(post=post) as (owner, told):
            mine = client(place(owner, tmp_path))
            for step in (1, 2):
                mine.save(step, bytes(BYTES), persist=False)
                post.until(lambda step=step: step in [one for one, _ in post.said])
            (why,) = told.of("NoPeer")
            assert why == (
                "trainer/0: no copy of step 1 on a peer node: 8 MiB are needed, 8 MiB are left in this container of the"
                " peer"
            )
            mine.close()
            assert whole(tmp_path) == [2, 1]


def test_copies_of_other_nodes_are_dropped_when_the_nodes_own_ranks_need_the_room(tmp_path, monkeypatch):
    with a_saver() as (peer, _):
        post = Straight(peer)
        with a_saver(post=post) as (owner, told):
            mine = client(place(owner, tmp_path / "a"))
            mine.save(1, bytes(BYTES), persist=False)
            post.until(lambda: (1, "") in post.said)

            def check(name: str, _size: int) -> None:
                if kept(peer):
                    raise UsageError(f"{name}: no room")

            monkeypatch.setattr(client_module, "check_room", check)
            theirs = client(place(peer, tmp_path / "b"))
            theirs.save(1, bytes(BYTES), persist=False)
            assert kept(peer) == []
            for step in (2, 3):  # what was said of 2 is told before 3 is offered
                mine.save(step, bytes(BYTES), persist=False)
                post.until(lambda step=step: step in [one for one, _ in post.said])
            assert "need its memory" in told.of("NoPeer")[0]
            for one in (mine, theirs):
                one.close()


def test_a_copy_of_a_life_that_is_over_is_not_taken(tmp_path):
    with a_saver() as (peer, _):
        post = Straight(peer)
        with a_saver(post=post) as (owner, _):
            successor = client(place(peer, tmp_path, number=2))
            assert successor.load() is None
            mine = client(place(owner, tmp_path))
            mine.save(1, {"a": 1}, persist=False)
            post.until(lambda: bool(post.said))
            assert post.said == [(1, "run 1.2 has begun here")]
            for one in (mine, successor):
                one.close()


def test_a_peers_copy_does_not_hide_a_newer_copy_of_the_owner(tmp_path):
    """The rank alone has died, not its node: whoever decides on the peer asks the owner before it decides."""
    end = threading.Event()

    def stops(offer: Any, _at: int, data: bytes) -> bytes:
        if offer["head"]["step"] == 2:
            end.wait()
        return data

    owner: Saver

    def others(_: str) -> None:
        assert owner.flush(WITHIN_S) == ""

    with a_saver(others) as (peer, _):
        post = Straight(peer, stops)
        with a_saver(post=post) as (owner, _):
            first = Rank(place(owner, tmp_path), body(1))
            assert first.heard() == "saved"
            post.until(lambda: (1, "") in post.said)
            first.kill()
            second = Rank(place(owner, tmp_path), body(2))
            assert second.heard() == "saved"
            second.kill()
            again = Rank(place(peer, tmp_path, number=2), loads)
            assert again.heard() == "2 True"
            assert again.wait() == 0
            end.set()
