"""The choice of the peer: the saver of the next node in the ring of the job's savers (ADR 31).

The peer stays the same while it answers. Where no other node has a saver, the next one of the job's nodes gets one, for
copies that are to stay in memory alone.
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
from dljob.runtime.checkpoint.saving import start_saver
from dljob.runtime.process.messages import JobInfo, agent_prefix, saver_name, saver_prefix

CALL_S = 60.0
"""Seconds for the peer to take one piece."""


def next_in_ring(own_name: str, names: Iterable[str], after: str = "") -> str:
    """Return the next name in the ring, or the next after one that did not answer; empty if there is no other."""
    others = sorted(name for name in names if name != own_name)
    return next((name for name in others if name > (after or own_name)), next(iter(others), ""))


class RayPeer:
    """A peer's agent (`carrying.PeerAgent`), called through Ray."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def begin(self, offer: Mapping[str, Any]) -> str:
        """Implement `PeerAgent.begin`."""
        return ray.get(self._actor.peer_begin.remote(offer), timeout=CALL_S)

    def piece(self, offer: Mapping[str, Any], at: int, data: bytes) -> None:
        """Implement `PeerAgent.piece`."""
        # Each piece is awaited: more of them at once would fill the object stores of both nodes.
        ray.get(self._actor.peer_piece.remote(offer, at, data), timeout=CALL_S)

    def finish(self, offer: Mapping[str, Any], crc: int | None) -> str:
        """Implement `PeerAgent.finish`."""
        return ray.get(self._actor.peer_finish.remote(offer, crc), timeout=CALL_S)


class PeerLink:
    """The connection of one saver's agent to the agents of other nodes."""

    def __init__(self, job: JobInfo, node: str) -> None:
        self._job = job
        self._node = node
        self._name = saver_name(job, node)
        self._peer = ""
        """The name of the last peer that was tried."""
        self._actor: Any = None

    def other_savers(self) -> list[Any]:
        """List the agents of all other nodes' savers; an agent that died with its node is left out."""
        agents: list[Any] = []
        for name in self._names(saver_prefix(self._job)):
            if name != self._name:
                with contextlib.suppress(ValueError):
                    agents.append(ray.get_actor(name, self._job.namespace))
        return agents

    def carry(self, offer: Mapping[str, Any], fd: int) -> str:
        """Send a copy to the peer, as `peers.Post.carry`.

        When it does not answer, the next call takes the next peer.
        """
        try:
            if self._actor is None:
                # A new process only for what is in memory alone: a copy that goes to disk in a moment is not worth one
                # (ADR 31).
                self._actor = self._peer_actor(make=not offer["head"]["persist"])
            return AWAY if self._actor is None else carry(fd, offer, RayPeer(self._actor))
        except (RayError, CheckpointError, ValueError, OSError):
            self._actor = None
            return AWAY

    def forget(self, rows: list[dict[str, Any]]) -> None:
        """Tell the peer which copies it may drop, as `peers.Post.forget`."""
        if self._actor is not None:
            # Not awaited: a lost message costs the peer a copy's memory until a newer one replaces it.
            self._actor.peer_forget.remote(rows)

    def _peer_actor(self, *, make: bool) -> Any:
        names = self._names(saver_prefix(self._job))
        self._peer = next_in_ring(self._name, names, self._peer) or (self._start_peer() if make else "")
        return ray.get_actor(self._peer, self._job.namespace) if self._peer else None

    def _start_peer(self) -> str:
        """Start a saver on the next of the job's nodes, when only this node has one; return its name, or empty."""
        prefix = agent_prefix(self._job)
        short = next_in_ring(self._node[:8], (name.removeprefix(prefix) for name in self._names(prefix)))
        node = next((row["NodeID"] for row in ray.nodes() if row["Alive"] and row["NodeID"][:8] == short), "")
        if node:
            start_saver(self._job, node)
        return saver_name(self._job, node) if node else ""

    def _names(self, prefix: str) -> list[str]:
        """List the agents' names under a prefix.

        Hosts of a role with the same name as the agents lie one level deeper.
        """
        rows: list[Any] = list_named_actors(all_namespaces=True)
        names = (str(row["name"]) for row in rows)
        return [name for name in names if name.startswith(prefix) and "/" not in name.removeprefix(prefix)]
