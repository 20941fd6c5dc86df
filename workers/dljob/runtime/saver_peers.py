"""Where a node's copies go: the saver of the next node in the ring of the job's savers (ADR 31).

The peer stays the same while it answers. Where no other node has a saver, the next one of the job's nodes gets one, for
copies that are to be in memory alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from dljob.errors import CheckpointError
from dljob.runtime.checkpoint.carrying import AWAY, carry
from dljob.runtime.messages import JobInfo, agent_prefix, saver_name, saver_prefix
from dljob.runtime.saving import start_saver

CALL_S = 60.0
"""How long the peer may take for one piece."""


def following(mine: str, names: Iterable[str], after: str = "") -> str:
    """The next one in the ring, or the next after one that did not answer; empty without another."""
    others = sorted(name for name in names if name != mine)
    return next((name for name in others if name > (after or mine)), next(iter(others), ""))


class Calls:
    """A peer's agent (`carrying.Peer`), called through Ray."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def begin(self, offer: Mapping[str, Any]) -> str:
        """See Peer."""
        return ray.get(self._actor.peer_begin.remote(offer), timeout=CALL_S)

    def piece(self, offer: Mapping[str, Any], at: int, data: bytes) -> None:
        """See Peer."""
        ray.get(self._actor.peer_piece.remote(offer, at, data), timeout=CALL_S)

    def finish(self, offer: Mapping[str, Any], crc: int | None) -> str:
        """See Peer."""
        return ray.get(self._actor.peer_finish.remote(offer, crc), timeout=CALL_S)


class PeerLink:
    """One saver's agent's way to the agents of others."""

    def __init__(self, job: JobInfo, node: str) -> None:
        self._job = job
        self._node = node
        self._name = saver_name(job, node)
        self._peer = ""
        """The last one that was tried."""
        self._actor: Any = None

    def others(self) -> list[Any]:
        """The agents of all other nodes' savers; one that is gone with its node has nothing to say."""
        found: list[Any] = []
        for name in self._names(saver_prefix(self._job)):
            if name != self._name:
                with contextlib.suppress(ValueError):
                    found.append(ray.get_actor(name, self._job.namespace))
        return found

    def carry(self, offer: Mapping[str, Any], fd: int) -> str:
        """See peers.Post. After a peer that does not answer comes the next one."""
        try:
            if self._actor is None:
                self._actor = self._found(make=not offer["head"]["persist"])
            return AWAY if self._actor is None else carry(fd, offer, Calls(self._actor))
        except (RayError, CheckpointError, ValueError, OSError):
            self._actor = None
            return AWAY

    def forget(self, rows: list[dict[str, Any]]) -> None:
        """See peers.Post."""
        if self._actor is not None:
            self._actor.peer_forget.remote(rows)

    def _found(self, *, make: bool) -> Any:
        names = self._names(saver_prefix(self._job))
        self._peer = following(self._name, names, self._peer) or (self._made() if make else "")
        return ray.get_actor(self._peer, self._job.namespace) if self._peer else None

    def _made(self) -> str:
        """A saver on the next of the job's nodes, where nobody saves yet; its name, or empty."""
        prefix = agent_prefix(self._job)
        short = following(self._node[:8], (name.removeprefix(prefix) for name in self._names(prefix)))
        node = next((row["NodeID"] for row in ray.nodes() if row["Alive"] and row["NodeID"][:8] == short), "")
        if node:
            start_saver(self._job, node)
        return saver_name(self._job, node) if node else ""

    def _names(self, prefix: str) -> list[str]:
        rows: list[Any] = list_named_actors(all_namespaces=True)
        return [row["name"] for row in rows if row["name"].startswith(prefix)]
