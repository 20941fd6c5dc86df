"""The plays: events of a life from the first attempt until its user code may end; each call occurs in one of them.

Before a play the DLJob is created. After it the job succeeds, its logs are saved, and its TTL deletes it.
"""

from __future__ import annotations

from life import NAME, NODES, Life, Play

from dljob.reconcile.state import names


async def restart(life: Life) -> None:
    """Play one attempt in which a user restarts a rank."""
    await life.attempt(1)
    order = {names.RESTART: "2026-01-01T00:00:00Z", names.RESTART_TARGET: "worker/0"}
    await life.order(metadata={"annotations": order})
    await life.told(Recovering="Requested")
    await life.set_up(1, 2)


async def loss(life: Life) -> None:
    """Lose the head while the job runs: the attempt fails, and another one runs to the end."""
    await life.lose(*await life.attempt(1))
    await life.attempt(2)


async def pause(life: Life) -> None:
    """Exclude a Kubernetes node, so that its pod is replaced; then suspend and resume the job."""
    ip, _ = await life.attempt(1)
    cluster = names.cluster_name(NAME, life.uid, 1)
    (left,) = life.workers(cluster)
    await life.order(metadata={"annotations": {names.EXCLUDE_NODES: NODES[0]}})
    await life.until(lambda: life.workers(cluster) not in ([], [left]), "its worker is replaced")
    await life.told(ClusterReady="WorkersPending", Recovering="Preempted")
    (fresh,) = life.workers(cluster)
    await life.scene.replace(ip, fresh)
    await life.place(fresh, NODES[1])
    await life.told(ClusterReady="PodsReady")
    await life.set_up(1, 2)
    await life.order(metadata={"annotations": {names.EXCLUDE_NODES: None}})
    await life.until(lambda: not life.avoided(), "the node is taken again")
    await life.order(spec={"suspend": True})
    await life.told(Suspended="JobSuspended")
    await life.scene.lose(ip)
    await life.order(spec={"suspend": False})
    await life.attempt(2)


PLAYS: dict[str, Play] = {"restart": restart, "loss": loss, "pause": pause}
"""Plays by name; a call that occurs in several gets its deaths in the first."""

BY_CHANCE: dict[str, str] = {
    "PlacementReady=False/UnitsPending": "PrimeMaster has placed one unit on a free Ray a moment after its first word",
    "POST events UnitsPending": "the same moment",
    "PlacementReady=True/UnitsHeld in <1> #2": "the end of that moment",
    "POST events HeadPending in <2>": "an Event that has the words of one of attempt 1 is counted, not made",
    "phase=Stopping": "PrimeMaster ends one rank that has ended already in a moment",
}
"""Words of calls that only some lives make, unavoidably -> reason."""


def why(call: str) -> str:
    """Return why a call is made by chance; empty when unexplained."""
    return next((reason for words, reason in BY_CHANCE.items() if words in call), "")
