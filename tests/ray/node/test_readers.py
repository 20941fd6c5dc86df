"""Who looks into files on another node: one process for many questions, another after its death, then none."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayError

from dljob.runtime.node.readers import Readers


@pytest.fixture
def node(ray_here: Any) -> str:
    return ray_here.nodes[0].node_id


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def gone(pid: int) -> None:
    """Return when a process has ended."""
    deadline = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < deadline, "the reader stays"
        await asyncio.sleep(0.05)


async def test_one_reader_process_answers_until_it_is_idle(node: str) -> None:
    readers = Readers(idle_s=0.2)
    first = await readers.ask(node, os.getpid)
    assert set(await asyncio.gather(*(readers.ask(node, os.getpid) for _ in range(20)))) == {first}
    assert first != os.getpid()
    await gone(first)
    assert await readers.ask(node, os.getpid) != first


async def test_a_reader_that_died_or_hangs_is_replaced(node: str) -> None:
    readers = Readers(idle_s=0.2)
    first = await readers.ask(node, os.getpid)
    with pytest.raises(RayError):
        await readers.ask(node, os.kill, first, signal.SIGKILL)
    second = await readers.ask(node, os.getpid)
    assert second != first
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await readers.ask(node, time.sleep, 3600)
    third = await readers.ask(node, os.getpid)
    assert third not in (first, second)
    for pid in (second, third):
        await gone(pid)


async def test_a_question_about_this_node_needs_no_reader_process(ray_here: Any) -> None:
    assert await Readers().ask(ray.get_runtime_context().get_node_id(), os.getpid) == os.getpid()


async def test_a_reader_ends_with_its_node_and_the_node_is_reported_gone(ray_here: Any) -> None:
    readers, node = Readers(), ray_here.add_node()
    pid = await readers.ask(node.node_id, os.getpid)
    ray_here.kill_raylet(node)
    await gone(pid)
    for _ in range(2):
        with pytest.raises(RayError, match="node"):
            await readers.ask(node.node_id, os.getpid)
    ray_here.remove_node(node)
