"""Kubernetes nodes, read live, but only those of pods that overran their grace, and of heads that are not ready."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from dljob.kube.api import NODES, ApiError, Kube, NotThereError
from dljob.reconcile.policies.machines import FORCE_SECONDS
from dljob.reconcile.state.fields import items
from dljob.reconcile.state.model import Object, Pod
from dljob_operator.watch.clock import MACHINE, OperatorClock

log = logging.getLogger(__package__)

KEEP_SECONDS = 10.0
"""Time, in seconds, for which a node's state is kept."""
START_SECONDS = 60.0
"""Time that a head may take to start before its node is looked at."""
FORBIDDEN_SECONDS = 300.0
"""The same where nodes may not be read, as with rights in namespaces alone."""


class Machines:
    """States of Kubernetes nodes."""

    def __init__(self, kube: Kube, clock: OperatorClock = MACHINE) -> None:
        self._kube = kube
        self._clock = clock
        self._nodes: dict[str, tuple[float, str]] = {}
        """Name -> (monotonic time until which it is valid, state)."""

    async def with_node_states(self, pods: Sequence[Pod]) -> tuple[Pod, ...]:
        """Return the pods, with the state of the node for those that overran their grace, and silent heads."""
        now = self._clock.wall()
        return tuple(
            [
                replace(pod, machine=await self._state(pod.node))
                if pod.node and (_is_overdue(pod, now) or _is_silent_head(pod, now))
                else pod
                for pod in pods
            ]
        )

    async def _state(self, name: str) -> str:
        at = self._clock.monotonic()
        # Nodes come and go, so expired states are dropped here.
        self._nodes = {node: known for node, known in self._nodes.items() if known[0] > at}
        if name not in self._nodes:
            self._nodes[name] = await self._node_state(name, at)
        return self._nodes[name][1]

    async def _node_state(self, name: str, at: float) -> tuple[float, str]:
        try:
            node = await self._kube.get(NODES, name)
        except NotThereError:
            return at + KEEP_SECONDS, "Gone"
        except ApiError as error:
            if error.status in (401, 403):
                # The policy then goes by PrimeMaster's word and by the pod's own condition (ADR 38).
                return at + FORBIDDEN_SECONDS, "Unknown"
            log.warning("cannot look at Kubernetes node %s: %s", name, error.message)
            # Empty: unknown for the moment, and asked again soon.
            return at + KEEP_SECONDS, ""
        return at + KEEP_SECONDS, "Ready" if _ready(node) else "NotReady"


def _is_overdue(pod: Pod, now: float) -> bool:
    return pod.ends is not None and pod.ends + FORCE_SECONDS <= now


def _is_silent_head(pod: Pod, now: float) -> bool:
    """Whether a head is not ready that had time to start: its node may be the reason."""
    return (
        pod.head and pod.phase == "Running" and not pod.ready and not pod.leaving and pod.created + START_SECONDS <= now
    )


def _ready(node: Object) -> bool:
    """Whether the kubelet reports Ready; when it falls silent, the node controller sets Unknown."""
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in items(node, "status", "conditions"))
