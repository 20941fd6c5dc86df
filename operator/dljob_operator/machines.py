"""Kubernetes nodes, looked at live, and only those of pods that are to be gone and are not."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from dljob.control.fields import items
from dljob.control.machines import FORCE_SECONDS
from dljob.control.model import Object, Pod
from dljob.kube.api import NODES, ApiError, Kube, NotThereError

log = logging.getLogger(__name__)

KEEP_SECONDS = 10.0
"""A node is looked at again after that."""
FORBIDDEN_SECONDS = 300.0
"""And after that when it may not be looked at, as where the operator has rights in namespaces alone."""


class Machines:
    """What is known of Kubernetes nodes. `now`: unix seconds, as the API server's clock has them."""

    def __init__(self, kube: Kube, now: Callable[[], float] = time.time) -> None:
        self._kube = kube
        self._now = now
        self._known: dict[str, tuple[float, str]] = {}
        """Name -> (until when it is believed, on the monotonic clock; its state)."""

    async def told(self, pods: Sequence[Pod]) -> tuple[Pod, ...]:
        """The pods, with the state of the nodes of those whose time is over."""
        now = self._now()
        return tuple(
            [
                replace(pod, machine=await self._state(pod.node))
                if pod.node and pod.ends is not None and pod.ends + FORCE_SECONDS <= now
                else pod
                for pod in pods
            ]
        )

    async def _state(self, name: str) -> str:
        at = time.monotonic()
        self._known = {node: known for node, known in self._known.items() if known[0] > at}
        if name not in self._known:
            self._known[name] = await self._look(name, at)
        return self._known[name][1]

    async def _look(self, name: str, at: float) -> tuple[float, str]:
        try:
            node = await self._kube.get(NODES, name)
        except NotThereError:
            return at + KEEP_SECONDS, "Gone"
        except ApiError as error:
            if error.status in (401, 403):
                return at + FORBIDDEN_SECONDS, "Unknown"
            log.warning("cannot look at Kubernetes node %s: %s", name, error.message)
            return at + KEEP_SECONDS, ""
        return at + KEEP_SECONDS, "Ready" if _ready(node) else "NotReady"


def _ready(node: Object) -> bool:
    """Whether its kubelet says so, and has said so lately: else the node controller makes it Unknown."""
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in items(node, "status", "conditions"))
