"""Checkpoint service: tells savers which checkpoints are committed, and which saver decides what a run restores."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from dljob.master.start import checkpoints
from dljob.master.state import events as ev
from dljob.master.state.checkpoint_ids import CheckpointId, Committed, RunId, Saves
from dljob.master.state.cuts import checkpoints_allowed_by_cuts, checkpoints_in_cuts
from dljob.runtime.controller.master_loop import MasterLoop, until
from dljob.runtime.controller.services import shard_service
from dljob.telemetry import reasons

TURN_S = 300.0
"""Seconds for one saver to search for the checkpoint to restore, before another one searches as well."""
LATER_S = 1.0
"""Seconds that a question waits for a master that still replays its journal."""
NOT_WHOLE = "its checkpoint does not fit those of the other ranks, or the queues: all ranks of the cut must restart"
"""Told to a rank whose decision is refused; `CutDamaged` in the timeline says which cut, and why."""
MESSAGE = 600
"""Most characters of a message about a checkpoint that is not saved: the journal keeps it."""
POLL_S = 10.0
"""Longest wait (s) of a question; the saver then repeats it."""


class CheckpointService:
    """The checkpoint service of one master.

    The turn to decide is not journaled: when two savers decide, both are told the decision that was journaled first.
    """

    def __init__(self) -> None:
        self._turns: dict[tuple[str, RunId], tuple[str, float]] = {}
        self._waits: shard_service.Waits = {}

    async def answer(self, shell: MasterLoop, question: Mapping[str, Any], node: str) -> dict[str, Any]:
        """Answer a saver's question, once the facts that it reports are in the journal.

        {gone}: the job is over, and nothing is committed any more. {later}: the journal is still being replayed.
        """
        await until(shell.changed, lambda: shell.recovered or shell.aborted or shell.final is not None, LATER_S)
        if shell.aborted or shell.final is not None:
            return {"gone": True}
        return await self._answer(shell, question, node) if shell.recovered else {"later": True}

    async def _answer(self, shell: MasterLoop, question: Mapping[str, Any], node: str) -> dict[str, Any]:
        world = str(question["world"])
        if question["what"] == "commit":
            mark = CheckpointId.of(question["mark"])
            # A saver repeats its question when an answer is lost: a commit that is known is not journaled again.
            if mark not in [entry.mark for entry in shell.state.saves.get(world, Saves()).committed]:
                oldest = question.get("oldest") and CheckpointId.of(question["oldest"])
                await shell.offer(ev.CheckpointCommitted(world, mark, oldest))
            keep = [entry.json() for entry in checkpoints_in_cuts(shell.state.cuts, world)]
            return {"why": checkpoints.refusal_reason(shell.state, world, mark), "keep": keep}
        if question["what"] == "not saved":
            last = shell.state.saves.get(world, Saves()).last
            # A report may be later than the commit of a save that was tried after it.
            if last is None or last.mark < CheckpointId.of(question["mark"]):
                message = _not_saved(question, last)
                await shell.offer(ev.ProblemReported(reasons.CHECKPOINT_NOT_SAVED, world, message))
            return {"why": ""}
        # Before the cuts of an earlier attempt are known, the positions in the data are not either.
        await shell.cuts.ready()
        if question["what"] == "shards":
            return await shard_service.answer(shell, question, self._waits)
        run_id = RunId(**question["run"])
        if question["what"] == "turn":
            return await self._turn(shell, world, run_id, node)
        chosen = question["chosen"] and CheckpointId.of(question["chosen"])
        damaged = tuple(str(text) for text in question.get("damaged", ()))
        await shell.offer(ev.CheckpointDecided(world, run_id, chosen, damaged=damaged))
        self._turns.pop((world, run_id), None)
        answer = await self._taken_back(shell, world, run_id)
        return answer if answer.get("known", True) else {**answer, "why": NOT_WHOLE}

    async def _turn(self, shell: MasterLoop, world: str, run_id: RunId, node: str) -> dict[str, Any]:
        def known() -> bool:
            return bool(_decided(shell, world, run_id)["known"])

        # One saver searches the disk for all; the others wait for its decision.
        whose, ends = self._turns.get((world, run_id), ("", 0.0))
        if not known() and whose not in ("", node) and time.monotonic() < ends:
            await until(shell.changed, known, POLL_S)
            if not known():
                return {"again": True}
            return {**await self._taken_back(shell, world, run_id), "yours": False}
        if known():
            return {**await self._taken_back(shell, world, run_id), "yours": False}
        self._turns[world, run_id] = node, time.monotonic() + TURN_S
        await shell.cuts.verify(world)
        among = checkpoints_allowed_by_cuts(shell.state.cuts, world)
        answer = _decided(shell, world, run_id)
        return {
            **answer,
            "yours": not answer["known"],
            "among": None if among is None else [mark.json() for mark in among],
        }

    async def _taken_back(self, shell: MasterLoop, world: str, run_id: RunId) -> dict[str, Any]:
        """Return what a run restores once the queues are there: it must not meet those of a future that it left."""
        problem = await shell.cuts.go_back()
        if problem is None:
            await until(shell.changed, lambda: False, LATER_S)
            return {"again": True}
        answer = _decided(shell, world, run_id)
        return {**answer, "why": f"{problem}; all ranks of the cut must restart" if problem else answer["why"]}


def _not_saved(question: Mapping[str, Any], last: Committed | None) -> str:
    mark, disk = CheckpointId.of(question["mark"]), f"{question['why']} ({question['folder']})"
    saved = f"the last one on disk is {last.mark}" if last else "none is on disk"
    return f"{question['rank']}: {mark} is not on disk: {disk}; {saved}"[:MESSAGE]


def _decided(shell: MasterLoop, world: str, run_id: RunId) -> dict[str, Any]:
    """Return the checkpoint that a run restores, whether that is known, and why it never will be."""
    decision = shell.state.saves.get(world, Saves()).decision(run_id)
    if decision is None:
        reason = checkpoints.superseded_reason(shell.state, world, run_id)
        return {"known": bool(reason), "chosen": None, "why": reason}
    return {"known": True, "chosen": decision.chosen and decision.chosen.json(), "why": ""}
