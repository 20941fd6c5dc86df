"""The gateway of a RayCluster, as the operator and the command ask it: status, placement, commands, logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dljob.kube.api import Json
from dljob.kube.head import Ask, answered, refused
from dljob.kube.transport import AnyJson, Query

LONGEST = 30.0
"""Seconds that a long poll may wait at the gateway."""


@dataclass(frozen=True, slots=True)
class Tails:
    """The last lines of ranks' logs. `cut`: those for which there was no room, as `role/rank`."""

    logs: Mapping[str, str]
    cut: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """What a log has since an offset in bytes; `end`: nothing will follow."""

    text: str
    offset: int
    end: bool


class Gateway:
    """One gateway; `dljob.kube.head` makes the `ask`. Every call may raise HeadError."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def version(self) -> Json:
        """`dljob`, `ray`, `python` and `session` of the head."""
        return await self._get("/v1/version")

    async def jobs(self) -> list[Json]:
        """`uid`, `name` and `phase` of each job."""
        return await self._get("/v1/jobs")

    async def status(self, job: str, *, after: int = 0, wait: float = 0.0, ranks: bool = False) -> Json:
        """The snapshot of a job (32 hex digits of its uid) as soon as its version is beyond `after`, or after `wait` s.

        Raises:
            UnknownError: No such job there.
            AwayError: PrimeMaster does not answer now.
        """
        query: dict[str, str | int] = {"after": after, "timeout": f"{min(wait, LONGEST):g}"}
        return await self._get(f"/v1/jobs/{job}/status", {**query, **({"ranks": 1} if ranks else {})}, wait)

    async def events(self, job: str, *, after: int = 0, wait: float = 0.0) -> list[Json]:
        """The notes of a job beyond the sequence number `after`."""
        query = {"after": after, "timeout": f"{min(wait, LONGEST):g}"}
        return (await self._get(f"/v1/jobs/{job}/events", query, wait))["events"]

    async def placement(self, job: str) -> Json:
        """`version`, and `nodes`: which pod holds which units, roles and ranks."""
        return await self._get(f"/v1/jobs/{job}/placement")

    async def command(self, job: str, *, id: str, kind: str, target: str, by: str) -> None:  # noqa: A002 - its name there
        """Order something of PrimeMaster; the same id happens once."""
        body = {"id": id, "kind": kind, "target": target, "by": by}
        answered(await self._ask("POST", f"/v1/jobs/{job}/commands", body=body), f"{kind} {target}")

    async def tails(self, job: str, limit: int) -> Tails:
        """The ends of all ranks' logs, in `limit` bytes together."""
        got = await self._get(f"/v1/jobs/{job}/logs", {"bytes": limit}, 25.0)
        return Tails(got["logs"], tuple(got.get("cut", ())))

    async def tail(self, job: str, role: str, rank: int, limit: int) -> str:
        """The end of one rank's log, at most `limit` bytes."""
        query: Query = {"role": role, "rank": rank, "bytes": limit}
        reply = await self._ask("GET", f"/v1/jobs/{job}/logs", query=query, limit=LONGEST)
        if reply.status >= 400:
            raise refused(reply, f"log of {role}/{rank}")
        return reply.text()

    async def stacks(self, job: str, target: str) -> Mapping[str, str]:
        """Rank (`role/rank`) -> the stacks of its process as text, of a target as for commands."""
        return (await self._get(f"/v1/jobs/{job}/stacks", {"target": target}, 25.0))["stacks"]

    async def follow(self, job: str, role: str, rank: int, start: int) -> Piece:
        """What one rank's log has from the byte `start` on; waits a while for news."""
        query: Query = {"role": role, "rank": rank, "follow": 1, "from": start}
        got = await self._get(f"/v1/jobs/{job}/logs", query, LONGEST)
        return Piece(got["text"], got["offset"], got["end"])

    async def _get(self, path: str, query: Query | None = None, wait: float = 0.0) -> AnyJson:
        return answered(await self._ask("GET", path, query=query, limit=min(wait, LONGEST) + 5.0), path)
