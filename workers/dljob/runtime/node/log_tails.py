"""Ends of ranks' logs, read on the node that holds them by a task or actor without resources.

A rank's log stays in the job's folder on its node after the rank and the job have ended, for as long as the node lives.
An answer has a budget of bytes, which the logs share fairly; of each log its newest bytes are kept.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dljob.errors import NotFoundError, UnreachableError
from dljob.logs import archive, cut, marks
from dljob.logs import master as master_log

LEAST_BYTES = 512
"""Shortest useful tail in bytes: when the budget is small, fewer ranks are shown instead of shorter tails."""
AHEAD = 4
"""Multiple of its equal share that is fetched of each log, since ranks with short logs leave bytes to the others."""
MASTER_SHARE = 8
"""PrimeMaster's log takes at most this fraction (one part in 8) of a budget."""
NODES_AT_ONCE = 128
"""Nodes that are asked at the same time: each question may start a worker process there."""
WITHIN_S = 20.0
"""Seconds for all nodes together: a worker process must start on each. Callers wait 25 s."""

VOLUME_S = 3.0
"""Seconds for the checkpoint volume to return archived logs of lost nodes: a volume may hang."""
AGAIN_S = 0.2
"""Seconds between attempts while this raylet does not know a new node yet."""

Row = Mapping[str, Any]
"""A rank in a snapshot."""
OnNode = Callable[..., Awaitable[Any]]
"""A function (node, function, *args) that runs `function` on that node and returns its result."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a log. `offset` is the byte behind the text, `size` the length of the whole log; both in bytes."""

    text: str
    offset: int
    size: int
    timed: bool = True
    """Whether the text begins at the requested moment; false where no time stamps tell when lines were written."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log file and the node that holds it."""

    title: str
    """The owner as users call it: `trainer/2`, or PrimeMaster."""
    node: str
    path: str


# -- pure


def of_rank(folder: Path, row: Row) -> LogFile:
    """Return the log of a rank in a snapshot."""
    return LogFile(_name(row), row["node"], str(folder / "logs" / f"{_file(row)}.log"))


def of_master(folder: Path, node: str, *, older: bool) -> LogFile:
    """Return PrimeMaster's log on its present node; with `older` the file before the last rotation."""
    name = master_log.OLDER if older else master_log.NAME
    return LogFile(f"PrimeMaster ({name})", node, str(folder / "logs" / name))


def order(snapshot: Mapping[str, Any]) -> list[Row]:
    """Return the ranks by the worth of their logs: the last failure's target, then other failed ranks, then rank 0s."""
    fault = (snapshot.get("lastFault") or {}).get("target", "")

    def weight(row: Row) -> tuple[bool, bool, bool]:
        name = f"{row['role']}/{row['rank']}"
        return (name != fault and row["role"] != fault, row["phase"] != "Failed", row["rank"] != 0)

    return sorted(snapshot["ranks"], key=weight)


def share(sizes: Sequence[int], budget: int) -> list[int]:
    """Split a budget in bytes: small logs get all they have, the others equal parts of the rest."""
    shares = [0] * len(sizes)
    bytes_left = budget
    for count, index in enumerate(sorted(range(len(sizes)), key=lambda i: sizes[i])):
        # From the smallest on: bytes that a small log leaves are shared by all that follow.
        shares[index] = min(sizes[index], bytes_left // (len(sizes) - count))
        bytes_left -= shares[index]
    return shares


def fit(sizes: Sequence[int], budget: int) -> int:
    """Return how many logs, counted from the first, can have all their bytes or at least LEAST_BYTES."""
    bytes_left = budget
    for count, size in enumerate(sizes):
        bytes_left -= min(size, LEAST_BYTES)
        if bytes_left < 0:
            return count
    return len(sizes)


def last(data: bytes, limit: int) -> str:
    """Return the end of a log as text of at most `limit` bytes of UTF-8, cut between characters."""
    # A bad byte becomes U+FFFD, which takes three bytes: the decoded text may be longer than what was cut.
    text = _drop_partial_character(data[max(0, len(data) - limit) :]).decode("utf-8", "replace")
    encoded = text.encode()
    return (
        text
        if len(encoded) <= limit
        else _drop_partial_character(encoded[len(encoded) - limit :]).decode("utf-8", "ignore")
    )


def _drop_partial_character(data: bytes) -> bytes:
    """Drop the remaining bytes of a first character whose start was cut off."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def complete(data: bytes) -> bytes:
    """Drop a last character whose bytes are not all written yet."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return data[:-back] if length > back else data
    return data


# -- on the node


def read_ends(folder: str, names: Sequence[str], limit: int) -> list[tuple[int, bytes]]:
    """Return (size, last bytes) of each named log in a job's folder; (-1, b"") for a log that is not there."""
    return [_tail_of(Path(folder) / "logs" / f"{name}.log", None, limit)[:2] for name in names]


def read_from(path: str, offset: int | None, limit: int) -> tuple[int, bytes, int]:
    """Return (size, bytes, offset of the first byte) of a log from an offset.

    An offset beyond the end belongs to an earlier log of that name, so the new one is read from its start.
    """
    return _tail_of(Path(path), offset, limit)


def find_since(path: str, moment: float) -> int | None:
    """Return the offset of a log's first line since a moment (unix seconds); None without time stamps."""
    log = Path(path)
    is_master_log = log.name in (master_log.NAME, master_log.OLDER)
    return master_log.place_since(log, moment) if is_master_log else marks.place_since(log, moment)


def _tail_of(path: Path, offset: int | None, limit: int) -> tuple[int, bytes, int]:
    """Read one part of a log, and only of a plain file: user code may have put a link, a FIFO or a device in its place.

    A part that was cut out of the log (a hole in the file) is skipped: the bytes begin behind it.
    """
    try:
        # O_NONBLOCK, as the open of a FIFO would wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return -1, b"", 0
    with os.fdopen(fd, "rb") as log:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return -1, b"", 0
        at = max(0, info.st_size - limit) if offset is None else offset if offset <= info.st_size else 0
        at, end = cut.next_data(fd, at, info.st_size)
        log.seek(at)
        return info.st_size, log.read(min(limit, end - at)), at


# -- from all nodes


async def gather(folder: Path, snapshot: Mapping[str, Any], budget: int) -> dict[str, Any]:
    """Collect the ends of all logs of a job within a budget in bytes.

    The result is {"logs": {"role/rank": tail}, "cut": [ranks without room], "master": tail of PrimeMaster's own log}. A
    log on a node that does not answer is a line that says so, behind what the checkpoint volume still has of it.
    """
    ranks = order(snapshot)
    # More than an equal share, as ranks with short logs leave theirs to others, but never the whole budget of each.
    limit = min(budget, max(LEAST_BYTES, AHEAD * budget // max(1, len(ranks))))
    by_node: dict[str, list[str]] = {}
    for row in ranks:
        by_node.setdefault(row["node"], []).append(_file(row))
    at_once = asyncio.Semaphore(NODES_AT_ONCE)
    end = asyncio.get_running_loop().time() + WITHIN_S

    async def ask(node: str, names: list[str]) -> dict[str, bytes]:
        try:
            async with asyncio.timeout_at(end), at_once:
                ends = await on_node(node, read_ends, str(folder), names, limit)
        except Exception as error:  # noqa: BLE001 - the other nodes' logs are wanted all the same
            # Behind what the volume has: a reader sees at the end of the log why it stops there.
            word = f"[dljob] {_unreadable(error)}\n".encode() if node else b""
            archived_ends = await _archived_ends(folder, names, limit) if node else {}
            return {name: archived_ends.get(name, b"") + word for name in names}
        return {name: data for name, (_, data) in zip(names, ends, strict=True)}

    end_by_file: dict[str, bytes] = {}
    master_log_read = _decisions(folder, snapshot, budget // MASTER_SHARE)
    master_log_end, answers = await asyncio.gather(
        master_log_read, asyncio.gather(*(ask(node, names) for node, names in by_node.items()))
    )
    for answer in answers:
        end_by_file |= answer
    budget -= len(master_log_end.encode())
    written = [(_name(row), end_by_file[_file(row)]) for row in ranks if end_by_file.get(_file(row))]
    room = fit([len(data) for _, data in written], budget)
    shares = share([len(data) for _, data in written[:room]], budget)
    logs = {name: last(data, log_share) for (name, data), log_share in zip(written, shares, strict=False)}
    return {"logs": logs, "cut": [name for name, _ in written[room:]], "master": master_log_end}


async def _decisions(folder: Path, snapshot: Mapping[str, Any], limit: int) -> str:
    """Return the last whole entries of PrimeMaster's log that fit, or one line with the reason why there are none."""
    log = of_master(folder, str(snapshot.get("masterNode") or ""), older=False)
    try:
        part = await read(on_node, log, None, limit)
    except NotFoundError:
        return ""  # it has written none
    except UnreachableError as error:
        return f"[dljob] {error.message}\n"
    # A text that is shorter than the log was cut at a byte: its first line is half an entry.
    return part.text if len(part.text.encode()) == part.size else part.text.partition("\n")[2]


async def _archived_ends(folder: Path, names: Sequence[str], limit: int) -> dict[str, bytes]:
    """Return the ends of logs of lost nodes from the checkpoint volume, where this process (or the head) mounts it."""
    volume = os.environ.get(archive.CHECKPOINT)

    def ends(root: Path) -> dict[str, bytes]:
        paths = {name: path for name in names if (path := archive.newest(root, name))}
        return {name: _tail_of(path, None, limit)[1] for name, path in paths.items()}

    with suppress(OSError, ValueError):
        async with asyncio.timeout(VOLUME_S):
            return await asyncio.to_thread(ends, Path(volume) / folder.name) if volume else {}
    return {}


async def read(ask: OnNode, log: LogFile, offset: int | None, limit: int, *, since: float | None = None) -> Part:
    """Read a log from an offset, since a moment (unix seconds), or its end; `ask` runs a function on a node.

    Raises:
        NotFoundError: The log does not exist yet.
        UnreachableError: Its node does not answer, or is gone.
    """
    node = log.node
    if not node:
        raise NotFoundError(f"there is no log of {log.title}: it is on no node")
    timed = True
    try:
        async with asyncio.timeout(WITHIN_S):
            if since is not None:
                place = await ask(node, find_since, log.path, since)
                offset, timed = place or 0, place is not None
            size, data, at = await ask(node, read_from, log.path, offset, limit)
    except Exception as error:
        raise UnreachableError(_unreadable(error)) from error
    if size < 0:
        raise NotFoundError(f"there is no log of {log.title} on its node")
    if offset is None:
        return Part(last(data, limit), at + len(data), size)
    if at + len(data) < size or len(data) < limit:
        # The next read goes on at `offset`: half a character at the end is left to it. Data that is nothing but half
        # a character is returned as it is, or the reader would never come past it.
        complete_part = complete(data)
        data = complete_part or data
    return Part(data.decode("utf-8", "replace"), at + len(data), size, timed)


async def on_node(node: str, function: Any, *args: Any) -> Any:
    """Run a function on a node in a task without resources; in a thread of this process if it is on that node."""
    import ray
    from ray.exceptions import ActorUnschedulableError, TaskUnschedulableError

    if not node:
        raise LookupError("it never had a node")
    if node == ray.get_runtime_context().get_node_id():
        return await asyncio.to_thread(function, *args)
    unknown = (ActorUnschedulableError, TaskUnschedulableError)
    return await retry_unknown_node(lambda: _task(node, function, *args), unknown, lambda: is_alive(node))


async def retry_unknown_node(
    ask: Callable[[], Awaitable[Any]], unknown: tuple[type[Exception], ...], lives: Callable[[], bool]
) -> Any:
    """Return the result of `ask`, tried again while this raylet does not know a node that has just joined.

    The attempts stop when the node is dead, or when the caller is cancelled: callers set the time limit.
    """
    while True:
        try:
            return await ask()
        except unknown:
            if not await asyncio.to_thread(lives):
                raise
        await asyncio.sleep(AGAIN_S)


async def _task(node: str, function: Any, *args: Any) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # No CPUs: the node's are taken by ranks, and the task must run beside them.
    task: Any = ray.remote(num_cpus=0, max_retries=1)(function)
    ref = task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(*args)
    try:
        return await ref
    except asyncio.CancelledError:
        with suppress(Exception):  # the caller has given up, and the task ends by itself even when this fails
            ray.cancel(ref, force=True)
        raise


def is_alive(node: str) -> bool:
    """Return whether Ray lists a node as alive."""
    import ray

    return any(row["NodeID"] == node and row["Alive"] for row in ray.nodes())


def _unreadable(error: Exception) -> str:
    words = str(error).strip().splitlines()
    problem = words[0][:200] if words else f"no answer within {WITHIN_S:g} s"
    return f"the log on its node cannot be read: {problem}"


def _file(row: Row) -> str:
    return f"{row['role']}-{row['rank']}"


def _name(row: Row) -> str:
    return f"{row['role']}/{row['rank']}"
