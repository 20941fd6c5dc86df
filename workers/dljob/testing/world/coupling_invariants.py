"""The invariant of coupled restarts: no rank of a coupled role goes on when a rank that it ran with starts again."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.testing.world.model import Running
from dljob.testing.world.state import WorldState


def meet(w: WorldState, running: Running) -> None:
    """Record with which ranks a starting one runs, where one of the two is to restart with the other."""
    for live_rank in _live(w):
        if live_rank.role in w.job.roles[running.role].roles_taken_along:
            w.met.add((live_rank, running))
        if running.role in w.job.roles[live_rank.role].roles_taken_along:
            w.met.add((running, live_rank))


def outlived(w: WorldState, running: Running) -> Iterator[str]:
    """Yield the live ranks of coupled roles that ran with an earlier incarnation of a rank that starts."""
    coupled = w.job.roles[running.role].roles_taken_along
    for live_rank in _live(w) if coupled else ():
        for rank, peer in w.met if live_rank.role in coupled else ():
            same = (peer.role, peer.rank) == (running.role, running.rank)
            if rank == live_rank and same and peer.incarnation < running.incarnation:
                yield (
                    f"coupled: {live_rank.role}/{live_rank.rank} goes on while {running.role}/{running.rank} starts as"
                    f" {running.incarnation}: it ran with {peer.incarnation}"
                )


def _live(w: WorldState) -> Iterator[Running]:
    """Yield the ranks that run in reachable processes; those of a silent node end by their lease."""
    if any(facts.roles_taken_along for facts in w.job.roles.values()):
        for process in w.processes.values():
            if w.reachable(process.node):
                yield from process.ranks
