"""Whose reader another caller has ended asks the next one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnschedulableError

from dljob.runtime.node import log_tails, readers


class Made:
    """Readers that Ray makes; each question waits for the test's word on its reader."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.actors: list[Any] = []
        self.killed: list[Any] = []
        monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "here"))
        monkeypatch.setattr(ray, "remote", lambda _: SimpleNamespace(options=lambda **_: self))
        monkeypatch.setattr(ray, "kill", self.killed.append)
        monkeypatch.setattr(log_tails, "is_alive", lambda node: node == "ab" * 28)
        monkeypatch.setattr(log_tails, "AGAIN_S", 0)

    def remote(self) -> Any:
        asked: list[asyncio.Future[Any]] = []

        def answer(*_: Any) -> asyncio.Future[Any]:
            asked.append(asyncio.get_running_loop().create_future())
            return asked[-1]

        self.actors.append(SimpleNamespace(answer=SimpleNamespace(remote=answer), asked=asked))
        return self.actors[-1]


async def turns() -> None:
    await asyncio.sleep(0.05)  # a look at the nodes is in a thread


@pytest.mark.parametrize(("node", "again"), [("ab" * 28, True), ("cd" * 28, False)])
async def test_a_caller_whose_shared_reader_ended_asks_again(monkeypatch, node, again):
    made = Made(monkeypatch)
    known = readers.Readers()
    both = [asyncio.create_task(known.ask(node, len, "abc")) for _ in range(2)]
    await asyncio.sleep(0)
    first, second = made.actors[0].asked
    first.set_exception(ActorUnschedulableError("no such node"))
    await asyncio.wait([both[0]], timeout=0.01)
    assert made.killed == made.actors[:1]
    second.set_exception(ActorDiedError())
    if again:
        while len(made.actors) < 2 or len(made.actors[1].asked) < 2:
            await turns()
        for question in made.actors[1].asked:
            question.set_result(3)
        assert await asyncio.gather(*both) == [3, 3]
        assert made.killed == made.actors[:1]
    else:
        said = await asyncio.gather(*both, return_exceptions=True)
        assert [type(error) for error in said] == [ActorUnschedulableError, readers.TakenAwayError]
        assert "died unexpectedly" in str(said[1])
