"""Client of a RayCluster's gateway, for the operator and the command: status, placement, commands, logs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard, cast

from dljob.kube.api import Json
from dljob.kube.head import Ask, MisbehavesError, TooOldError, answered, answered_object
from dljob.kube.transport import Query

LONGEST = 30.0
"""Longest long poll at the gateway, in seconds."""
MASTER_LOG_SINCE = "0.1.0"
"""The first dljob whose gateway gives PrimeMaster's log."""
PIECE = 1 << 20
"""Bytes of a log in one answer: a log may have some 100 MiB, and each answer comes through the API server's proxy."""


@dataclass(frozen=True, slots=True)
class Tails:
    """Last lines of ranks' logs; `cut` names the ranks that did not fit, as `role/rank`."""

    logs: Mapping[str, str]
    cut: tuple[str, ...] = ()
    master: str = ""
    """The last entries of PrimeMaster's own log."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a log from an offset in bytes; `end`: nothing will follow.

    `timed`: it begins at the requested moment, not at the beginning of the log. `size`: bytes of the whole log when it
    was read; without limit from a head of an earlier release, which does not tell it.
    """

    text: str
    offset: int
    end: bool
    timed: bool = True
    size: int = sys.maxsize


class GatewayClient:
    """Client of one gateway; `dljob.kube.head` makes the `ask`. Every call may raise HeadError.

    Among logs, those of a role without a name are PrimeMaster's: rank 0 is its log, rank 1 the file before that.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def version(self) -> Json:
        """Return `dljob`, `ray`, `python` and `session` of the head."""
        return await self._get("/v1/version")

    async def jobs(self) -> list[Json]:
        """Return `uid`, `name` and `phase` of each job."""
        return answered(await self._ask("GET", "/v1/jobs"), "/v1/jobs")

    async def status(self, job: str, *, after: int = 0, wait: float = 0.0, ranks: bool = False) -> Json:
        """Return the snapshot of a job once its version is above `after`, or after `wait` seconds.

        Args:
            job: 32 hex digits of its uid.
            after: a known version.
            wait: seconds, at most LONGEST.
            ranks: include each rank.

        Raises:
            UnknownError: the job does not exist there.
            UnavailableError: PrimeMaster does not answer now.
        """
        # The gateway has its own limit for long polls.
        query: dict[str, str | int] = {"after": after, "timeout": f"{min(wait, LONGEST):g}"}
        return await self._get(f"/v1/jobs/{job}/status", {**query, **({"ranks": 1} if ranks else {})}, wait)

    async def events(self, job: str, *, after: int = 0, wait: float = 0.0) -> list[Json]:
        """Return the notes of a job beyond the sequence number `after`."""
        query = {"after": after, "timeout": f"{min(wait, LONGEST):g}"}
        return (await self._get(f"/v1/jobs/{job}/events", query, wait))["events"]

    async def placement(self, job: str) -> Json:
        """Return `version`, and `nodes`: the units, roles and ranks on each pod."""
        return await self._get(f"/v1/jobs/{job}/placement", large=True)

    async def endpoints(self, job: str) -> Json:
        """Return role -> its ranks that get requests, each with `rank` and `addresses`, for each role with ports."""
        return await self._get(f"/v1/jobs/{job}/endpoints", large=True)

    async def command(self, job: str, *, id: str, kind: str, target: str, by: str) -> None:  # noqa: A002 - its name there
        """Send a command to PrimeMaster; one id takes effect once."""
        body = {"id": id, "kind": kind, "target": target, "by": by}
        answered(await self._ask("POST", f"/v1/jobs/{job}/commands", body=body), f"{kind} {target}")

    async def tails(self, job: str, limit: int) -> Tails:
        """Return the ends of all logs, within `limit` bytes in total."""
        got = await self._get(f"/v1/jobs/{job}/logs", {"bytes": limit}, 25.0, large=True)
        logs, cut = got.get("logs"), got.get("cut", [])
        # The operator writes them into a ConfigMap, which holds nothing but texts.
        if not isinstance(logs, dict) or not _are_texts(list(cast("Json", logs).values())) or not _are_texts(cut):
            raise MisbehavesError(200, f"logs of {job}: not texts by rank")
        return Tails(cast("dict[str, str]", logs), tuple(cut), str(got.get("master") or ""))

    async def tail(self, job: str, role: str, rank: int, limit: int) -> Piece:
        """Return the end of one log, at most `limit` bytes."""
        return await self._piece(job, {**_whose(role, rank), "follow": 1, "bytes": limit})

    async def record(self, job: str, have: Mapping[str, int]) -> Json:
        """Return `files` of a job's record with their sizes, and `parts` of those that the caller has in part."""
        query = {"have": ",".join(f"{name}:{size}" for name, size in have.items())}
        return await self._get(f"/v1/jobs/{job}/record", query, 20.0, large=True)

    async def stacks(self, job: str, target: str) -> Mapping[str, str]:
        """Return the stacks by rank (`role/rank`) as text; targets are those of commands."""
        return (await self._get(f"/v1/jobs/{job}/stacks", {"target": target}, 25.0))["stacks"]

    async def follow(self, job: str, role: str, rank: int, start: int, *, limit: int | None = None) -> Piece:
        """Return a piece of one log from the byte `start` on, at most `limit` bytes; the gateway waits for news."""
        size = {} if limit is None else {"bytes": limit}
        return await self._piece(job, {**_whose(role, rank), "follow": 1, "from": start, **size})

    async def since(self, job: str, role: str, rank: int, moment: float) -> Piece:
        """Return a piece of one log since a moment in unix seconds; earlier releases ignore the moment."""
        return await self._piece(job, {**_whose(role, rank), "follow": 1, "since": int(moment * 1000)})

    async def _piece(self, job: str, query: Query) -> Piece:
        got = await self._get(f"/v1/jobs/{job}/logs", query, LONGEST)
        if "text" not in got:  # the ends of all ranks' logs: `master` is not known there
            # To say which version the head has; a head that is too old still tells it.
            has = (await self.version()).get("dljob") or "unknown"
            words = f"its dljob ({has}) is too old to give PrimeMaster's log: that needs {MASTER_LOG_SINCE} or newer"
            raise TooOldError(200, words)
        return Piece(got["text"], got["offset"], got["end"], bool(got.get("timed")), got.get("size", sys.maxsize))

    async def _get(self, path: str, query: Query | None = None, wait: float = 0.0, *, large: bool = False) -> Json:
        limit = min(wait, LONGEST) + 5.0  # the gateway answers after `wait`; the rest is for the way
        return answered_object(await self._ask("GET", path, query=query, limit=limit, large=large), path)


def _are_texts(values: object) -> TypeGuard[list[str]]:
    return isinstance(values, list) and all(isinstance(value, str) for value in cast("list[object]", values))


def _whose(role: str, rank: int) -> dict[str, str | int]:
    if role:
        return {"role": role, "rank": rank, "bytes": PIECE}
    return {"master": 1, **({"older": 1} if rank else {}), "bytes": PIECE}
