"""The invariant of coupled restarts: no rank of a coupled role goes on when a rank that it ran with starts again."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.testing.world.model import Running
from dljob.testing.world.state import WorldState


def meet(w: WorldState, running: Running) -> None:
    """Record with which ranks a starting one runs, where one of the two is to restart with the other."""
    for other in _live(w):
        if other.role in w.job.roles[running.role].roles_taken_along:
            w.met.add((other, running))
        if running.role in w.job.roles[other.role].roles_taken_along:
            w.met.add((running, other))


def outlived(w: WorldState, running: Running) -> Iterator[str]:
    """Yield the live ranks of coupled roles that ran with an earlier incarnation of a rank that starts."""
    coupled = w.job.roles[running.role].roles_taken_along
    for other in _live(w) if coupled else ():
        for rank, peer in w.met if other.role in coupled else ():
            same = (peer.role, peer.rank) == (running.role, running.rank)
            if rank == other and same and peer.incarnation < running.incarnation:
                yield (
                    f"coupled: {other.role}/{other.rank} goes on while {running.role}/{running.rank} starts as"
                    f" {running.incarnation}: it ran with {peer.incarnation}"
                )


def _live(w: WorldState) -> Iterator[Running]:
    """Yield the ranks that run in reachable processes; those of a silent node end by their lease."""
    if any(facts.roles_taken_along for facts in w.job.roles.values()):
        for process in w.processes.values():
            if w.reachable(process.node):
                yield from process.ranks
