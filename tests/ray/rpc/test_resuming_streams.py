"""Streams that go on at another callee, or at the next process of the same one."""

from __future__ import annotations

import os
import signal

import pytest
from rpc_kit import World
from usercode.engines import next_token

from dljob import RoleGroup

pytestmark = pytest.mark.ray


def expected(prompt: list[int], count: int) -> list[int]:
    text = list(prompt)
    for _ in range(count):
        text.append(next_token(text))
    return text[len(prompt) :]


@pytest.fixture
def world(ray_here, tmp_path):
    made = World(tmp_path, ranks=2, cls="engines.Engine")
    made.up(0)
    made.up(1)
    yield made
    made.close()


def test_a_stream_goes_on_elsewhere_when_its_callee_is_killed(world):
    group = RoleGroup("callee")
    pids = group.pid()
    stream = group.tokens([3, 5], 200)
    got = [next(stream) for _ in range(50)]
    os.kill(pids[0], signal.SIGKILL)
    got += stream
    assert got == expected([3, 5], 200)
    # At most what was under way is made again.
    assert group[1].how_many() <= 150 + 8
