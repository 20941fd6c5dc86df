"""What the ranks wrote: from the living job through its gateway, afterwards from the ConfigMap that outlives it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import gateway as gate
from dljob.api.kubernetes import jobs, whole_logs
from dljob.api.logs import Line
from dljob.api.values import suggestion
from dljob.control import names
from dljob.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]
Rank = tuple[str, int]

AT_ONCE = 16
"""So many ranks are asked at one time."""
MOST_FOLLOWED = 256
"""More ranks than that are not followed: each is asked by itself."""
SLOWEST = 5
"""A log without news is looked at again after one turn, two, and so on up to so many."""
TOLD_AT = 2
"""A log that could not be had so often in a row is told of: once is a node that comes, or a reader that ends."""
GAP = "[dljob] lines are missing here"
_LINE_BYTES = 200
_MOST_BYTES = 16 * 1024 * 1024
_SEEN_BYTES = 4096


def wanted(job: Mapping[str, Any], role: str | None, rank: int | None) -> list[Rank]:
    """The ranks that are asked for, in the order of the spec.

    Raises:
        NotFoundError: the job has no such role or rank.
    """
    sizes = jobs.role_sizes(job)
    if role is not None and role not in sizes:
        raise NotFoundError(f"job {job['metadata']['name']} has no role {role!r}", hint=suggestion(role, sizes))
    ranks = [
        (name, n) for name, size in sizes.items() for n in range(size) if role in (None, name) and rank in (None, n)
    ]
    if not ranks:
        largest = max(size for name, size in sizes.items() if role in (None, name))
        raise NotFoundError(f"there is no rank {rank}", hint=f"ranks are 0 to {largest - 1}")
    return ranks


def last_lines(text: str, tail: int | None) -> list[str]:
    """The lines of a text; with `tail`, the last so many."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines if tail is None else lines[max(0, len(lines) - tail) :]


def rest_of(saved: str, seen: str) -> str | None:
    """What a saved end of a log has after what was seen of it; None when the two do not meet."""
    if not seen:
        return saved
    at = saved.rfind(seen)
    if at >= 0:
        return saved[at + len(seen) :]
    overlap = next((n for n in range(min(len(seen), len(saved)), 0, -1) if seen.endswith(saved[:n])), 0)
    return saved[overlap:] if overlap else None


async def saved(kube: Kube, job: Mapping[str, Any]) -> dict[Rank, str] | None:
    """The logs that were kept when the cluster went; None when there are none."""
    from dljob.kube.api import CONFIG_MAPS, NotThereError

    meta = job["metadata"]
    try:
        found = await kube.get(CONFIG_MAPS, names.logs_map(meta["name"]), meta["namespace"])
    except NotThereError:
        return None
    owners = [owner.get("uid") for owner in jobs.items(found["metadata"], "ownerReferences")]
    if meta["uid"] not in owners:
        return None  # of an earlier job of that name, or of somebody else
    status = jobs.status_of(job)
    of = jobs.part(found["metadata"], "labels").get(names.ATTEMPT)
    if of and status.get("submissionId") and of != str(status.get("attempt")):
        return None  # of an attempt that was suspended; another has begun
    logs: dict[Rank, str] = {}
    for key, text in jobs.part(found, "data").items():
        role, _, number = key.removesuffix(".log").rpartition("-")
        if key.endswith(".log") and role and number.isdecimal():
            logs[role, int(number)] = text
    return logs


async def read(
    kube: Kube, job: Json, *, role: str | None = None, rank: int | None = None, tail: int | None = None
) -> list[Line]:
    """The lines there are, rank by rank; with `tail`, the last so many of each.

    Raises:
        NotFoundError: no such role or rank, or nothing was kept.
        SilentError: the job lives, and its head cannot be asked.
    """
    ranks = wanted(job, role, rank)
    kept = await saved(kube, job)
    if kept is None and not jobs.ended(job):
        texts = await _from_gateway(await gate.reach(kube, job), ranks, tail)
    elif whole := await asyncio.to_thread(whole_logs.read, job, ranks):
        texts = whole
    elif kept is None:
        texts = await _before_the_end(kube, job, ranks, tail)
    else:
        texts = kept
    lines = [Line(*key, text) for key in ranks if key in texts for text in last_lines(texts[key], tail)]
    if not any(key in texts for key in ranks):
        there = ", ".join(sorted({name for name, _ in texts}))
        raise NotFoundError("no output is kept of it", hint=f"there is output of: {there}" if there else "")
    return lines


async def _before_the_end(kube: Kube, job: Json, ranks: Sequence[Rank], tail: int | None) -> dict[Rank, str]:
    """An ended job whose logs are not saved yet, or never were: its head may still be there."""
    try:
        return await _from_gateway(await gate.reach(kube, job), ranks, tail)
    except gate.AwayError:
        raise
    except gate.SilentError as error:
        meta = job["metadata"]
        raise NotFoundError(
            f"no logs of job {jobs.place_of(job)} are kept: its head is gone, and there is no ConfigMap "
            f"{names.logs_map(meta['name'])}",
            hint=f"it may have ended before anything ran: dljob events {meta['name']} -n {meta['namespace']}",
        ) from error


async def _from_gateway(head: gate.Head, ranks: Sequence[Rank], tail: int | None) -> dict[Rank, str]:
    """The logs; a word in place of one that cannot be had. Raises AwayError when none can."""
    turn = asyncio.Semaphore(AT_ONCE)
    texts: dict[Rank, str] = {}
    away: dict[Rank, gate.AwayError] = {}

    async def one(key: Rank) -> None:
        async with turn:
            try:
                texts[key] = await (_whole(head, key) if tail is None else _tail(head, key, tail))
            except NotFoundError:
                pass  # it has not written anything yet
            except gate.AwayError as error:
                away[key] = error

    await asyncio.gather(*(one(key) for key in ranks))
    if away and not texts:
        raise next(iter(away.values()))
    return texts | {key: f"[dljob] {error.said}\n" for key, error in away.items()}


async def _whole(head: gate.Head, key: Rank) -> str:
    parts: list[str] = []
    at = 0
    while True:
        piece = await head.piece(*key, at)
        parts.append(piece.text)
        if piece.end or piece.offset <= at:
            return "".join(parts)
        at = piece.offset


async def _tail(head: gate.Head, key: Rank, tail: int) -> str:
    """At least so many lines, if there are."""
    length = 4096 + tail * _LINE_BYTES
    while True:
        text = await head.tail(*key, length)
        if len(text.encode()) < length or len(last_lines(text, None)) > tail or length >= _MOST_BYTES:
            return text
        length *= 4


@dataclass(slots=True)
class Follower:
    """One rank's log as it grows."""

    key: Rank
    at: int = 0
    rest: str = ""
    """A line that has no end yet."""
    seen: str = field(default="")
    """The end of what was read."""
    quiet: int = 0
    """How often in a row there was no news."""
    pause: int = 0
    """Turns until it is looked at again."""
    away: str = ""
    """Why it could not be had the last time."""
    missed: int = 0
    """How often in a row."""
    fresh: list[Line] = field(default_factory=list[Line])
    """Lines that nobody was given yet."""

    def take(self, text: str) -> list[Line]:
        """The lines that a new piece finishes."""
        self.seen = (self.seen + text)[-_SEEN_BYTES:]
        *whole, self.rest = (self.rest + text).split("\n")
        return [Line(*self.key, line) for line in whole]

    def last(self) -> list[Line]:
        """The line that never got its end."""
        line, self.rest = self.rest, ""
        return [Line(*self.key, line)] if line else []

    def drain(self) -> list[Line]:
        """The fresh lines, once."""
        lines, self.fresh = self.fresh, []
        return lines

    def begin_anew(self) -> None:
        """Nothing that comes goes on from what was read; a line without an end ends with it."""
        self.fresh += self.last()
        self.at, self.seen, self.quiet, self.pause = 0, "", 0, 0

    async def more(self, head: gate.Head) -> None:
        """Read on; what was read before an error stays among the fresh lines."""
        while True:
            piece = await head.piece(*self.key, self.at)
            if piece.offset < self.at:  # whoever writes it has begun anew
                self.begin_anew()
                continue
            read = piece.offset > self.at
            self.at = piece.offset
            self.fresh += self.take(piece.text)
            if piece.end or not read:
                return


class Followed:
    """The logs of several ranks as they grow; `hear` is asked again and again."""

    def __init__(self, ranks: Iterable[Rank], tail: int | None = None) -> None:
        self._followers = [Follower(key) for key in ranks]
        self._tail = tail
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._head: gate.Head | None = None
        self._attempt = 0

    async def hear(self, kube: Kube, job: Json) -> list[Line]:
        """What was written since the last time, rank by rank; a log that cannot be had twice in a row is told of once.

        Not of a job that has ended: its pods go at once, and what is kept of its logs comes last.
        """
        self._begin(jobs.begun(job))
        try:
            if self._head is None:
                self._head = await gate.reach(kube, job)
        except gate.SilentError:
            return []
        head, last = self._head, jobs.ended(job)
        told = {follower.away for follower in self._followers if follower.missed >= TOLD_AT}
        await asyncio.gather(*(self._look(follower, head, last=last) for follower in self._followers))
        lines: list[Line] = []
        for follower in self._followers:
            lines += follower.drain()
            if follower.missed >= TOLD_AT and follower.away not in told and not last:
                told.add(follower.away)
                lines.append(Line(*follower.key, f"[dljob] {follower.away}; it is asked for again"))
        return lines

    def _begin(self, attempt: int) -> None:
        """Read an attempt that is submitted from its beginning: its logs are others, on another head."""
        if attempt in (0, self._attempt):
            return
        self._attempt, self._head = attempt, None
        for follower in self._followers:
            if follower.at:
                self._tail = None  # of what was there at first, and nothing of this was
            follower.begin_anew()

    async def _look(self, follower: Follower, head: gate.Head, *, last: bool) -> None:
        """At first, the last lines when a tail was asked for; `last`: nobody waits for its turn."""
        first = follower.at == 0
        follower.pause -= 1
        if follower.pause > 0 and not last:
            return
        async with self._turn:
            away = ""
            try:
                await follower.more(head)
            except gate.AwayError as error:
                away = error.said
            except gate.SilentError:
                self._head = None  # it is looked for anew in the next turn
            except NotFoundError:
                pass
        follower.away, follower.missed = away, follower.missed + 1 if away else 0
        if first and self._tail is not None:
            follower.fresh = follower.fresh[max(0, len(follower.fresh) - self._tail) :]
        follower.quiet = 0 if follower.fresh else min(follower.quiet + 1, SLOWEST)
        follower.pause = follower.quiet

    def finish(self, kept: Mapping[Rank, str] | None) -> list[Line]:
        """What the saved logs have beyond what was seen, and lines without an end."""
        lines: list[Line] = []
        for follower in self._followers:
            text = (kept or {}).get(follower.key)
            if text is not None:
                rest = rest_of(text, follower.seen)
                lines += [] if rest is not None else [*follower.last(), Line(*follower.key, GAP)]
                lines += follower.take(text if rest is None else rest)
            lines += follower.last()
        return lines


async def follow(
    kube: Kube, job: Json, *, role: str | None = None, rank: int | None = None, tail: int | None = None
) -> AsyncGenerator[Line]:
    """The lines there are, and those to come, until the job has ended. A head that is away is waited for.

    Raises:
        NotFoundError: no such role or rank; the job was deleted.
        UsageError: too many ranks to follow.
    """
    ranks = wanted(job, role, rank)
    if len(ranks) > MOST_FOLLOWED:
        hint = f"take some with --role and --rank; at most {MOST_FOLLOWED} ranks are followed at once"
        raise UsageError(f"job {job['metadata']['name']} has {len(ranks)} ranks", hint=hint)
    followed = Followed(ranks, tail)
    async with contextlib.aclosing(jobs.each_second(kube, job)) as moments:
        async for now in moments:
            for line in await followed.hear(kube, now):
                yield line
    for line in followed.finish(await saved(kube, job)):
        yield line
