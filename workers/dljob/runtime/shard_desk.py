"""PrimeMaster's answers to ranks that ask for shards of a data set; what was said is journaled before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dljob.master import events as ev
from dljob.master import shards
from dljob.master.feeds import Feed
from dljob.master.marks import Life
from dljob.runtime.shell import Shell, until

POLL_S = 10.0
"""No question is kept waiting longer; who asked asks again."""


Waits = dict[str, asyncio.Task[bool]]
"""Data set -> what waits for news of it, for all ranks that do."""


async def answer(shell: Shell, question: Mapping[str, Any], waits: Waits) -> dict[str, Any]:
    """The leases of who asks: {runs, over}, {again} when there is nothing yet, {why} when there never will be."""
    event = told(question)
    if event.done or _wanting(shell, event):
        await shell.offer(event)
    if why := shards.refused(shell.state, event):
        return {"why": f"data set {event.name}: {why}"}
    if event.want and not shards.present(shell.state, event):
        return {"why": f"data set {event.name}: a later process of {event.role}/{event.rank} has begun"}
    runs = shards.runs_of(shell.state, event.name, (event.role, event.rank), event.incarnation)
    feed = shell.state.feeds.get(event.name)
    if runs or not event.want or feed is None or feed.over or not question["wait"]:
        return {"why": "", "runs": runs, "over": not runs}
    if (news := waits.get(event.name)) is None or news.done():
        news = waits[event.name] = asyncio.create_task(_news(shell, event.name))
    await asyncio.wait([news], timeout=POLL_S)
    return {"why": "", "again": True}


async def _news(shell: Shell, name: str) -> bool:
    """Wait until something is to do again, or nothing ever will be.

    One looks for all: at the end of a data set ten thousand may wait, and each change of anything would wake them.
    """
    seen: Feed | None = None

    def news() -> bool:
        nonlocal seen
        before, seen = seen, shell.state.feeds[name]
        return shell.final is not None or (seen is not before and (bool(seen.todo) or seen.over))

    return await until(shell.changed, news, None)


def _wanting(shell: Shell, event: ev.ShardsTold) -> bool:
    """Whether to ask would change anything: who waits for others does not fill the journal."""
    feed = shell.state.feeds.get(event.name)
    if feed is None:
        return True
    held = feed.held.get((event.role, event.rank))
    old = held is not None and held.incarnation < event.incarnation
    return old or (bool(feed.todo) and (held is None or len(held.runs) < event.want))


def told(question: Mapping[str, Any]) -> ev.ShardsTold:
    """The question as an event."""
    return ev.ShardsTold(
        name=str(question["name"]),
        size=int(question["size"]),
        shard=int(question["shard"]),
        epochs=int(question["epochs"]),
        world=str(question["world"]),
        role=str(question["role"]),
        rank=int(question["rank"]),
        incarnation=int(question["incarnation"]),
        life=Life(**question["life"]),
        saves=bool(question["saves"]),
        done=tuple((int(start), int(end), after) for start, end, after in question["done"]),
        want=int(question["want"]),
    )
