"""Streams that go on at another callee, or at the next process of the same one."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from rpc_kit import World
from usercode.engines import next_token

from dljob import PeerLostError, RoleGroup

pytestmark = pytest.mark.ray


def expected(prompt: list[int], count: int) -> list[int]:
    text = list(prompt)
    for _ in range(count):
        text.append(next_token(text))
    return text[len(prompt) :]


@pytest.fixture
def world(ray_here, tmp_path):
    made = World(tmp_path, ranks=3, cls="engines.Engine")
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(made.up, range(3)))
    yield made
    made.close()


def test_streams_go_on_when_callees_are_killed_drained_and_back_again(world):
    """One world for all of it: hosts take seconds to start."""
    group = RoleGroup("callee")
    pids = group.pid()
    stream = group.tokens([3, 5], 200)
    got = [next(stream) for _ in range(50)]
    callee = int(stream.segments[0].callee[-1])
    os.kill(pids[callee], signal.SIGKILL)
    got += stream
    assert got == expected([3, 5], 200)
    others = [rank for rank in range(3) if rank != callee]
    # At most what was under way is made again.
    assert sum(group[rank].how_many() for rank in others) <= 150 + 8
    world.tell(callee, 1, "", ready=False)

    # A drained one: nothing is made again.
    stream = group.slow_tokens([2], 60)
    got = [next(stream) for _ in range(5)]
    drained = int(stream.segments[0].callee[-1])
    last = next(rank for rank in others if rank != drained)
    made_by_last = group[last].how_many()
    stopper = threading.Thread(target=world.hosts[drained].stop, args=(drained,))
    stopper.start()
    got += stream
    stopper.join()
    assert got == expected([2], 60)
    first, second = stream.segments
    assert (first.callee, second.callee) == (f"callee/{drained}", f"callee/{last}")
    assert group[last].how_many() - made_by_last == second.count == 60 - first.count
    world.tell(drained, 1, "", ready=False)

    # None is ready: the stream waits for the next process of the one that it lost.
    stream = group.slow_tokens([7], 60)
    got = [next(stream) for _ in range(5)]
    os.kill(pids[last], signal.SIGKILL)
    world.tell(last, 1, "", ready=False)
    threading.Thread(target=world.up, args=(last, 2)).start()
    got += stream
    assert got == expected([7], 60)
    assert [segment.incarnation for segment in stream.segments] == [1, 2]


def test_a_request_that_kills_its_callees_is_given_up(world):
    stream = RoleGroup("callee").poison()
    got = []
    with pytest.raises(PeerLostError, match="the request seems to kill its callees") as told:
        got.extend(stream)
    assert got == [0, 1, 2, 3, 4]
    for rank in range(3):
        assert f"callee/{rank} (incarnation 1) at item 5" in str(told.value)
