"""Logs of the ranks on Kubernetes: from the gateway while the job runs, afterwards from the ConfigMap of kept logs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import gateway as gate
from dljob.api.kubernetes import jobs, whole_logs
from dljob.api.logs import UNTIMED, LogLine, Since
from dljob.api.values import suggestion
from dljob.errors import NotFoundError, UsageError
from dljob.reconcile.state import names

if TYPE_CHECKING:
    from pathlib import Path

    from dljob.kube.api import Kube
    from dljob.kube.gateway import Piece

Json = dict[str, Any]
Rank = tuple[str, int]
Pieces = AsyncGenerator[tuple[Rank, str]]
"""The text of logs, rank after rank, each rank's in order: a log is read in pieces, never into memory as a whole."""

MASTER: Rank = ("", 0)
"""PrimeMaster's own log, among those of ranks: no role is without a name."""
OLDER: Rank = ("", 1)
"""The file before that."""
AT_ONCE = 16
"""Number of ranks whose logs are read concurrently."""
MOST_FOLLOWED = 256
"""Most ranks that one call follows: each is polled by itself."""
SLOWEST = 5
"""Longest poll interval, in turns: a log without news is polled after 1 turn, then 2, and so on up to this."""
POLL_S = 1.0
"""Longest time, in seconds, to read one log before all lines are shown; the next poll goes on from there."""
TOLD_AT = 2
"""Consecutive failures before one is shown: a single one is usual when a node joins or a reader ends."""
GAP = "[dljob] lines are missing here"
READ_BYTES = 1 << 20
"""Bytes of a piece of a log that is read whole: with the gateway's own 64 KiB the way there would take most time. An
unfinished line that is longer is broken."""
_LINE_BYTES = 200
MOST_BYTES = 8 << 20
"""Most bytes of a log's end: the gateway refuses to send more in one answer."""
_SEEN_BYTES = 4096


def selected_ranks(job: Mapping[str, Any], role: str | None, rank: int | None) -> list[Rank]:
    """Return the ranks that `role` and `rank` select, in the order of the spec.

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
    """Return the lines of a text; with `tail`, only its last `tail` lines."""
    lines = text.split("\n")
    # A text that ends with a newline has no further, empty line.
    if lines[-1] == "":
        lines.pop()
    return lines if tail is None else lines[max(0, len(lines) - tail) :]


def rest_of(saved: str, seen_text: str) -> str | None:
    """Return the part of a saved log's end that follows `seen_text`; None when the two do not overlap."""
    if not seen_text:
        return saved
    at = saved.rfind(seen_text)
    if at >= 0:
        return saved[at + len(seen_text) :]
    # The saved end may begin within the text seen: find the longest end of `seen_text` that the saved text begins with.
    overlap = next((n for n in range(min(len(seen_text), len(saved)), 0, -1) if seen_text.endswith(saved[:n])), 0)
    return saved[overlap:] if overlap else None


async def kept_files(kube: Kube, job: Mapping[str, Any]) -> Json | None:
    """Return the files that were kept when the cluster was deleted; None when there are none of this attempt."""
    from dljob.kube.api import CONFIG_MAPS, NotThereError

    meta = job["metadata"]
    try:
        config_map = await kube.get(CONFIG_MAPS, names.logs_map(meta["name"]), meta["namespace"])
    except NotThereError:
        return None
    owners = [owner.get("uid") for owner in jobs.entries(config_map["metadata"], "ownerReferences")]
    if meta["uid"] not in owners:
        return None  # of an earlier job of that name, or of another owner
    status = jobs.status_of(job)
    of = jobs.nested(config_map["metadata"], "labels").get(names.ATTEMPT)
    # The map is overwritten at the end of each attempt, and keeps the label of the one that wrote it.
    if of and status.get("submissionId") and of != str(status.get("attempt")):
        return None  # of a suspended attempt; another has begun, and its logs are at its own head
    return jobs.nested(config_map, "data")


async def saved(kube: Kube, job: Mapping[str, Any]) -> dict[Rank, str] | None:
    """Return the logs among the kept files; None when nothing was kept of this attempt."""
    files = await kept_files(kube, job)
    if files is None:
        return None
    logs: dict[Rank, str] = {}
    for key, text in files.items():
        role, _, number = key.removesuffix(".log").rpartition("-")
        if key == names.MASTER_LOG:
            logs[MASTER] = text
        elif key.endswith(".log") and role and number.isdecimal():
            logs[role, int(number)] = text
    return logs


async def read(
    kube: Kube,
    job: Json,
    *,
    role: str | None = None,
    rank: int | None = None,
    tail: int | None = None,
    since: Since | None = None,
) -> AsyncGenerator[list[LogLine]]:
    """Yield the lines so far, rank by rank, as pieces of the logs arrive; with `tail`, the last lines of each rank.

    Raises:
        NotFoundError: no such role or rank, or nothing was kept.
        SilentError: the job runs, and its head does not answer.
    """
    ranks = selected_ranks(job, role, rank)
    reader: Follower | None = None
    async with contextlib.aclosing(await source(kube, job, ranks, tail, since)) as pieces:
        async for key, text in pieces:
            if reader is not None and reader.key != key:
                yield reader.close(tail)
            if reader is None or reader.key != key:
                reader = Follower(key)
            reader.fresh += reader.take(text)
            if tail is None:
                yield reader.drain()
            else:
                reader.keep_last(tail)
    if reader is None:
        roles_with_output = ", ".join(sorted({name for name, _ in await saved(kube, job) or {} if name}))
        raise NotFoundError(
            "no output of these ranks is kept",
            hint=f"there is output of: {roles_with_output}" if roles_with_output else "",
        )
    yield reader.close(tail)


async def texts_of(
    kube: Kube, job: Json, ranks: Sequence[Rank], tail: int | None, since: Since | None
) -> dict[Rank, str]:
    """Return the logs of those ranks that have one; with `tail`, at least the last `tail` lines of each."""
    texts: dict[Rank, str] = {}
    async with contextlib.aclosing(await source(kube, job, ranks, tail, since)) as pieces:
        async for key, text in pieces:
            texts[key] = texts.get(key, "") + text
    return texts


async def source(kube: Kube, job: Json, ranks: Sequence[Rank], tail: int | None, since: Since | None) -> Pieces:
    """Return the pieces of the logs of those ranks that have one, rank after rank, from the freshest source.

    With `tail` they are at least the last `tail` lines of each.
    """
    # While the job runs, only its head has the latest lines.
    kept_logs = await saved(kube, job)
    if kept_logs is None and not jobs.ended(job):
        return _from_gateway(await gate.reach(kube, job), ranks, tail, since)
    # Then whole logs on a volume, which is read in a thread: it may be slow, and the event loop must go on.
    if files_on_volume := await asyncio.to_thread(whole_logs.files, job, ranks):
        _say_untimed(job, since)
        return _from_volume(files_on_volume, ranks)
    # The ConfigMap keeps only the ends. Right after the end it is not there yet, but the head may still answer.
    if kept_logs is None:
        return _before_the_end(kube, job, ranks, tail, since)
    _say_untimed(job, since)
    return _from_kept(kept_logs, ranks)


def _say_untimed(job: Json, since: Since | None) -> None:
    """Tell the user that `since` has no effect: kept logs carry no times."""
    if since is not None:
        since.say(UNTIMED.format(f"job {job['metadata']['name']}"))


async def _from_kept(kept_logs: Mapping[Rank, str], ranks: Sequence[Rank]) -> Pieces:
    for key in ranks:
        if key in kept_logs:
            yield key, kept_logs[key]


async def _from_volume(files: Mapping[Rank, Sequence[Path]], ranks: Sequence[Rank]) -> Pieces:
    for key in ranks:
        pieces = whole_logs.pieces(files.get(key, ()))
        while (text := await asyncio.to_thread(next, pieces, None)) is not None:
            yield key, text


async def _before_the_end(
    kube: Kube, job: Json, ranks: Sequence[Rank], tail: int | None, since: Since | None
) -> Pieces:
    """Read an ended job's logs from its head, since they are not saved yet or never were.

    Raises:
        NotFoundError: the head is gone too.
    """
    begun = False
    try:
        head = await gate.reach(kube, job)
        async with contextlib.aclosing(_from_gateway(head, ranks, tail, since)) as pieces:
            async for piece in pieces:
                begun = True
                yield piece
    # It answers, and may have the logs a moment later: they are not lost.
    except gate.AwayError:
        raise
    except gate.SilentError as error:
        if begun:  # it went while it was read, and what it kept may come
            raise
        meta = job["metadata"]
        raise NotFoundError(
            f"no logs of job {jobs.place_of(job)} are kept: its head is gone, and there is no ConfigMap "
            f"{names.logs_map(meta['name'])}",
            hint=f"it may have ended before anything ran: dljob events {meta['name']} -n {meta['namespace']}",
        ) from error


async def _from_gateway(head: gate.JobGateway, ranks: Sequence[Rank], tail: int | None, since: Since | None) -> Pieces:
    """Yield the logs by rank; one line of explanation stands for what cannot be read.

    Raises:
        AwayError: no log at all can be read.
    """
    # A tail by time needs the log from that moment on; only a plain tail is read from the end.
    end = tail if since is None else None

    async def first(key: Rank) -> Piece:
        return await (_piece(head, key, 0, since, READ_BYTES) if end is None else _tail(head, key, end))

    unread: dict[Rank, gate.AwayError] = {}
    begun = False
    async with contextlib.aclosing(_read_ahead(ranks, first)) as readings:
        async for key, reading in readings:
            async with contextlib.aclosing(_one_log(head, key, reading, until_end=end is None)) as parts:
                async for part in parts:
                    if isinstance(part, gate.AwayError):
                        unread[key] = part
                    else:
                        begun = True
                    # Some logs are better than none: the error is raised only when every rank failed.
                    if begun:
                        for unread_key, error in unread.items():
                            yield unread_key, f"[dljob] {error.reason}\n"
                        unread.clear()
                    if not isinstance(part, gate.AwayError):
                        yield key, part
    if unread:
        raise next(iter(unread.values()))


async def _read_ahead(
    ranks: Iterable[Rank], first: Callable[[Rank], Coroutine[Any, Any, Piece]]
) -> AsyncGenerator[tuple[Rank, asyncio.Task[Piece]]]:
    """Yield each rank with the reading of its first piece; that of the next ranks is under way."""
    waiting = iter(ranks)
    ahead: deque[tuple[Rank, asyncio.Task[Piece]]] = deque()
    try:
        while True:
            more = itertools.islice(waiting, AT_ONCE - len(ahead))
            ahead.extend((key, asyncio.create_task(first(key))) for key in more)
            if not ahead:
                return
            yield ahead[0]
            ahead.popleft()
    finally:
        readings = [reading for _, reading in ahead]
        for reading in readings:
            reading.cancel()
        # Awaited, so that no error of a reading that nobody wants any more is reported as lost.
        await asyncio.gather(*readings, return_exceptions=True)


async def _one_log(
    head: gate.JobGateway, key: Rank, reading: asyncio.Task[Piece], *, until_end: bool
) -> AsyncGenerator[str | gate.AwayError]:
    """Yield a log's first piece; with `until_end`, all of it. In place of what cannot be read, yield the error."""
    text = ""
    try:
        piece = await reading
        yield (text := piece.text)
        # As far as it was written then: a rank that writes steadily has a new byte for each piece, for ever. An offset
        # that does not advance ends the log even without an `end`.
        at, stop = 0, piece.size
        while until_end and not piece.end and at < piece.offset < stop:
            at = piece.offset
            piece = await head.piece(*key, at, READ_BYTES)
            yield (text := piece.text)
    except NotFoundError:
        pass  # it has not written anything yet
    except gate.AwayError as error:
        if text and not text.endswith("\n"):
            yield "\n"
        yield error


async def _piece(head: gate.JobGateway, key: Rank, at: int, since: Since | None, limit: int | None = None) -> Piece:
    """Read a log from byte `at` on; at first, when `since` is given, from that moment."""
    if at or since is None:
        return await head.piece(*key, at, limit)
    # Times are noted on the node, so only the gateway can find the byte at a moment.
    piece = await head.since(*key, since.moment)
    if not piece.timed:
        since.say(UNTIMED.format(f"{key[0]}/{key[1]}"))
    return piece


async def _tail(head: gate.JobGateway, key: Rank, tail: int) -> Piece:
    """Return an end of the log that holds at least `tail` lines, or all of it up to MOST_BYTES."""
    # Lines have no known length: guess 200 bytes each, and ask for four times as much until there are enough.
    length = min(4096 + tail * _LINE_BYTES, MOST_BYTES)
    while True:
        piece = await head.tail(*key, length)
        # Fewer bytes than asked for are the whole log.
        if len(piece.text.encode()) < length or len(last_lines(piece.text, None)) > tail or length >= MOST_BYTES:
            return piece
        length = min(length * 4, MOST_BYTES)


@dataclass(slots=True)
class Follower:
    """Polling state of one rank's log."""

    key: Rank
    since: Since | None = None
    at: int = 0
    rest: str = ""
    """The unfinished last line."""
    last_text: str = field(default="")
    """The last bytes that were read: `finish` finds by them where the kept log goes on."""
    quiet: int = 0
    """Consecutive polls without news."""
    pause: int = 0
    """Turns until the next poll."""
    away: str = ""
    """Why the last poll failed; empty when it did not."""
    missed: int = 0
    """Consecutive failed polls."""
    fresh: list[LogLine] = field(default_factory=list[LogLine])
    """Lines that were read and not yet returned."""

    def take(self, text: str) -> list[LogLine]:
        """Append a piece and return the lines that it completes."""
        # As long as a unique end of a log needs to be, and no longer: there may be 256 followers.
        self.last_text = (self.last_text + text)[-_SEEN_BYTES:]
        *full_lines, self.rest = (self.rest + text).split("\n")
        # A progress bar without line ends must not grow in memory.
        while len(self.rest) > READ_BYTES:
            full_lines.append(self.rest[:READ_BYTES])
            self.rest = self.rest[READ_BYTES:]
        return [LogLine(*self.key, line) for line in full_lines]

    def last(self) -> list[LogLine]:
        """Return the unfinished last line, if any."""
        line, self.rest = self.rest, ""
        return [LogLine(*self.key, line)] if line else []

    def drain(self) -> list[LogLine]:
        """Return the fresh lines and forget them."""
        lines, self.fresh = self.fresh, []
        return lines

    def keep_last(self, tail: int) -> None:
        """Forget the fresh lines but for the last `tail`."""
        del self.fresh[: max(0, len(self.fresh) - tail)]

    def close(self, tail: int | None) -> list[LogLine]:
        """Return the fresh lines and the unfinished one, or the last `tail` of them."""
        self.fresh += self.last()
        if tail is not None:
            self.keep_last(tail)
        return self.drain()

    def begin_anew(self) -> None:
        """Start over at byte 0, because the log is a new one; an unfinished line ends here."""
        self.fresh += self.last()
        self.at, self.last_text, self.quiet, self.pause = 0, "", 0, 0

    async def begin_at_end(self, head: gate.JobGateway, tail: int) -> None:
        """Read an end of the log with at least `tail` whole lines, instead of all of it."""
        # One line more: the last one may be unfinished.
        piece = await _tail(head, self.key, tail + 1)
        self.at = piece.offset
        self.fresh += self.take(piece.text)

    async def more(self, head: gate.JobGateway, within_s: float) -> None:
        """Read on to the present end, or for `within_s`; lines read before an error stay among the fresh lines."""
        stop, until = sys.maxsize, time.monotonic() + within_s
        while True:
            piece = await _piece(head, self.key, self.at, self.since)
            if piece.offset < self.at:  # the file is shorter than before: the rank's log was replaced
                self.begin_anew()
                continue
            read = piece.offset > self.at
            self.at = piece.offset
            self.fresh += self.take(piece.text)
            stop = min(stop, piece.size)  # as in `_one_log`
            if piece.end or not read or piece.offset >= stop or time.monotonic() >= until:
                return


class Followed:
    """The logs of several ranks as they grow. Call `hear` once a second, and `finish` after the end."""

    def __init__(self, ranks: Iterable[Rank], tail: int | None = None, since: Since | None = None) -> None:
        self._followers = [Follower(key, since) for key in ranks]
        self._tail = tail
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._head: gate.JobGateway | None = None
        self._attempt = 0

    async def hear(self, kube: Kube, job: Json) -> list[LogLine]:
        """Return the lines written since the last call, rank by rank.

        A log that cannot be read twice in a row is reported once, unless the job has ended.
        """
        self._begin(jobs.begun(job))
        try:
            if self._head is None:
                # Kept between polls: reaching the head reads the Secret with its token.
                self._head = await gate.reach(kube, job)
        except gate.SilentError:
            return []  # the head starts or is away; the next call looks for it again
        head, last = self._head, jobs.ended(job)
        # Ranks of one node fail for one reason: each reason is shown once, not once per rank.
        shown_reasons = {follower.away for follower in self._followers if follower.missed >= TOLD_AT}
        await asyncio.gather(*(self._look(follower, head, last=last) for follower in self._followers))
        lines: list[LogLine] = []
        for follower in self._followers:
            lines += follower.drain()
            # Not after the end: the job's pods go at once, and `finish` adds the kept part of its logs.
            if follower.missed >= TOLD_AT and follower.away not in shown_reasons and not last:
                shown_reasons.add(follower.away)
                lines.append(LogLine(*follower.key, f"[dljob] {follower.away}; it is asked for again"))
        return lines

    def _begin(self, attempt: int) -> None:
        """Begin at the start of a new attempt's logs: they are other files, on another head."""
        if attempt in (0, self._attempt):
            return
        self._attempt, self._head = attempt, None
        for follower in self._followers:
            if follower.at:
                self._tail = None  # the tail was of the logs at the first call; these began after it
            follower.begin_anew()

    async def _look(self, follower: Follower, head: gate.JobGateway, *, last: bool) -> None:
        """Poll one log unless its pause lasts; `last` ignores the pause. The first poll keeps only `tail` lines."""
        first = follower.at == 0
        follower.pause -= 1
        if follower.pause > 0 and not last:
            return
        async with self._turn:
            away = ""
            try:
                if first and self._tail is not None and follower.since is None:
                    await follower.begin_at_end(head, self._tail)
                else:
                    # The last poll reads all that is left, and a tail since a moment needs the end of the log.
                    await follower.more(head, math.inf if last or (first and self._tail is not None) else POLL_S)
            except gate.AwayError as error:
                away = error.reason
            except gate.SilentError:
                self._head = None  # found again at the next call: a restarted head has another address
            except NotFoundError:
                pass  # the rank has not written anything yet
        follower.away, follower.missed = away, follower.missed + 1 if away else 0
        # The first poll reads more than the last lines, which alone are wanted.
        if first and self._tail is not None:
            follower.keep_last(self._tail)
        # Back off by one turn per quiet poll: hundreds of idle ranks would keep the gateway busy every second.
        follower.quiet = 0 if follower.fresh else min(follower.quiet + 1, SLOWEST)
        follower.pause = follower.quiet

    def finish(self, kept_logs: Mapping[Rank, str] | None) -> list[LogLine]:
        """Return what the kept logs have beyond the lines already shown, and unfinished lines.

        Args:
            kept_logs: the kept logs by rank; None when there are none.
        """
        lines: list[LogLine] = []
        for follower in self._followers:
            text = (kept_logs or {}).get(follower.key)
            if text is not None:
                rest = rest_of(text, follower.last_text)
                # Nothing was seen of it, so the kept log is shown whole, though it carries no times.
                if follower.since is not None and not follower.last_text and text:
                    follower.since.say(UNTIMED.format("{}/{}".format(*follower.key)))
                # No overlap: the kept end begins after the last shown line, so lines are missing; say so.
                lines += [] if rest is not None else [*follower.last(), LogLine(*follower.key, GAP)]
                lines += follower.take(text if rest is None else rest)
            lines += follower.last()
        return lines


async def follow(
    kube: Kube,
    job: Json,
    *,
    role: str | None = None,
    rank: int | None = None,
    tail: int | None = None,
    since: Since | None = None,
) -> AsyncGenerator[LogLine]:
    """Yield the lines so far and those to come, until the job has ended. An unreachable head is waited for.

    Raises:
        NotFoundError: no such role or rank; the job was deleted.
        UsageError: too many ranks to follow.
    """
    ranks = selected_ranks(job, role, rank)
    if len(ranks) > MOST_FOLLOWED:
        hint = f"take some with --role and --rank; at most {MOST_FOLLOWED} ranks are followed at once"
        raise UsageError(f"job {job['metadata']['name']} has {len(ranks)} ranks", hint=hint)
    followed = Followed(ranks, tail, since)
    async with contextlib.aclosing(jobs.each_second(kube, job)) as moments:
        async for now in moments:
            for line in await followed.hear(kube, now):
                yield line
    # The head's pods may be gone before the last lines were read; the operator kept them in the ConfigMap.
    for line in followed.finish(await saved(kube, job)):
        yield line
