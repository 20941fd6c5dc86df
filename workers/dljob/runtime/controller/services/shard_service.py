"""Shard service: leases shards of a data set to ranks. A lease is journaled before the rank receives it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dljob.master.start import shards
from dljob.master.state import events as ev
from dljob.master.state import shard_table
from dljob.master.state.checkpoint_ids import RunId, Saves
from dljob.master.state.shard_table import ShardTable
from dljob.runtime.controller.master_loop import MasterLoop, until
from dljob.tasks import nobody_waits

POLL_S = 10.0
"""Longest wait (s) of a question; the rank then repeats it."""


Waits = dict[str, asyncio.Task[bool]]
"""Data set -> the one task that waits for a change of it, on behalf of all waiting ranks."""


async def answer(shell: MasterLoop, question: Mapping[str, Any], waits: Waits) -> dict[str, Any]:
    """Answer a rank that reports shards as done and asks for more.

    Returns:
        {runs, over, epoch, oldest}: the leases that it holds now, whether there are none to come, the job's history,
        and the oldest checkpoint of its world on disk.
        {again}: nothing is free yet, so ask again. {why}: an error, which does not pass.
    """
    event = event_of(question)
    if event.done or event.lost or event.news or event.undone is not None or _wanting(shell, event):
        await shell.offer(event)
    # All below reads the state after the event: another rank's question may have been folded before this one.
    if refusal := shards.refusal_reason(shell.state, event):
        return {"why": f"data set {event.name}: {refusal}"}
    if (event.want or event.undone is not None) and not shards.is_from_present_process(shell.state, event):
        return {"why": f"data set {event.name}: a later process of {event.role}/{event.rank} has begun"}
    runs = shards.runs_of(shell.state, event.name, (event.role, event.rank), event.incarnation)
    feed = shell.state.feeds.get(event.name)
    # With the history of the job: what comes of these shards belongs to it, and queues take it (`CutStamp`).
    lease_fields = {
        "why": "",
        "runs": runs,
        "epoch": shell.state.cuts.restore_count + 1,
        "oldest": _oldest(shell, event.world),
    }
    if feed is not None and feed.unbounded:
        # Of a source there are always more to come: who has no partition asks again.
        more = {"names": feed.partitions, "open": shard_table.open_partitions(feed)}
        return {**lease_fields, "over": False, **more}
    # Leases that the rank holds are repeated: the answer that told it of them may have been lost.
    if runs or not event.want or feed is None or feed.over or not question["wait"]:
        return {**lease_fields, "over": not runs}
    if (news := waits.get(event.name)) is None or news.done():
        news = waits[event.name] = shell.tasks.start(
            "news of a data set", _wait_for_shard(shell, event.name), nobody_waits
        )
    await asyncio.wait([news], timeout=POLL_S)
    return {"why": "", "again": True}


def _oldest(shell: MasterLoop, world: str) -> dict[str, int] | None:
    oldest = shell.state.saves.get(world, Saves()).oldest
    return oldest.json() if oldest else None


async def _wait_for_shard(shell: MasterLoop, name: str) -> bool:
    """Wait until a shard of the data set is free again, the data set is finished, or the job is over.

    One task waits for all ranks: at the end of a data set ten thousand may wait, and any change would wake them all.
    """
    last_table: ShardTable | None = None

    def news() -> bool:
        nonlocal last_table
        before, last_table = last_table, shell.state.feeds[name]
        return shell.final is not None or (last_table is not before and (bool(last_table.todo) or last_table.over))

    return await until(shell.changed, news, None)


def _wanting(shell: MasterLoop, event: ev.ShardsTold) -> bool:
    """Return whether offering the event could change the state.

    The repeated questions of waiting ranks cannot, and must not fill the journal.
    """
    feed = shell.state.feeds.get(event.name)
    if feed is None or any(name not in feed.partitions for name, _ in event.partitions):
        return True
    lease = feed.leases.get((event.role, event.rank))
    old = lease is not None and lease.incarnation < event.incarnation
    return old or (bool(feed.todo) and shard_table.wants_more(feed, (event.role, event.rank), event.want))


def event_of(question: Mapping[str, Any]) -> ev.ShardsTold:
    """Return a question as an event."""
    undone = question.get("undone")
    return ev.ShardsTold(
        name=str(question["name"]),
        size=int(question["size"]),
        shard=int(question["shard"]),
        epochs=int(question["epochs"]),
        order=str(question.get("order", "")),
        world=str(question["world"]),
        role=str(question["role"]),
        rank=int(question["rank"]),
        incarnation=int(question["incarnation"]),
        run_id=RunId(**question["run"]),
        saves=bool(question["saves"]),
        done=tuple(
            (int(start), int(end), step, int(rest[0]) if rest else 0) for start, end, step, *rest in question["done"]
        ),
        want=int(question["want"]),
        partitions=tuple((str(name), int(first)) for name, first in question.get("partitions", ())),
        lost=tuple((int(start), int(end)) for start, end in question.get("lost", ())),
        news=tuple(str(word) for word in question.get("news", ())),
        undone=None if undone is None else tuple((int(start), int(end)) for start, end in undone),
    )
