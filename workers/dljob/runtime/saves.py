"""PrimeMaster's answers to savers: which checkpoints count, and who decides what a life restores."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from dljob.master import checkpoints
from dljob.master import events as ev
from dljob.master.marks import Life, Mark, Saves
from dljob.runtime import shard_desk
from dljob.runtime.shell import Shell, until

TURN_S = 300.0
"""So long a saver may look for what its life restores before another one looks as well."""
LATER_S = 1.0
"""So long a question waits for a master that reads its journal yet."""
POLL_S = 10.0
"""No question is kept waiting longer; who asked asks again."""


class SaveDesk:
    """One master's. Whose turn it is to decide is not journaled: two who decide are told the first one's word."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, Life], tuple[str, float]] = {}
        self._waits: shard_desk.Waits = {}

    async def answer(self, shell: Shell, question: Mapping[str, Any], node: str) -> dict[str, Any]:
        """What is written down, once it is. {gone}: nothing is any more; {later}: the journal is yet to be read."""
        await until(shell.changed, lambda: shell.recovered or shell.aborted or shell.final is not None, LATER_S)
        if shell.aborted or shell.final is not None:
            return {"gone": True}
        return await self._answer(shell, question, node) if shell.recovered else {"later": True}

    async def _answer(self, shell: Shell, question: Mapping[str, Any], node: str) -> dict[str, Any]:
        world = str(question["world"])
        if question["what"] == "commit":
            mark = _mark(question["mark"])
            if mark not in [one.mark for one in shell.state.saves.get(world, Saves()).committed]:
                await shell.offer(ev.CheckpointCommitted(world, mark))
            return {"why": checkpoints.refused(shell.state, world, mark)}
        if question["what"] == "shards":
            return await shard_desk.answer(shell, question, self._waits)
        life = Life(**question["life"])
        if question["what"] == "turn":
            return await self._turn(shell, world, life, node)
        chosen = question["chosen"] and _mark(question["chosen"])
        await shell.offer(ev.CheckpointDecided(world, life, chosen))
        self._turns.pop((world, life), None)
        return _decided(shell, world, life)

    async def _turn(self, shell: Shell, world: str, life: Life, node: str) -> dict[str, Any]:
        def known() -> bool:
            return bool(_decided(shell, world, life)["known"])

        whose, ends = self._turns.get((world, life), ("", 0.0))
        if not known() and whose not in ("", node) and time.monotonic() < ends:
            await until(shell.changed, known, POLL_S)
            return {**_decided(shell, world, life), "yours": False} if known() else {"again": True}
        said = _decided(shell, world, life)
        if not said["known"]:
            self._turns[world, life] = node, time.monotonic() + TURN_S
        return {**said, "yours": not said["known"]}


def _decided(shell: Shell, world: str, life: Life) -> dict[str, Any]:
    """What a life restores, if it is known; why it never will be."""
    made = shell.state.saves.get(world, Saves()).decision(life)
    if made is None:
        why = checkpoints.superseded(shell.state, world, life)
        return {"known": bool(why), "chosen": None, "why": why}
    mark = made.chosen
    chosen = mark and {"attempt": mark.life.attempt, "number": mark.life.number, "step": mark.step}
    return {"known": True, "chosen": chosen, "why": ""}


def _mark(data: Mapping[str, int]) -> Mark:
    return Mark(Life(data["attempt"], data["number"]), data["step"])
