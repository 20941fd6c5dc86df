"""What hangs while its Events alone say why: pods before their containers are made, RayClusters that KubeRay refuses.

Events are read by and by: of what hangs for seconds, of one pod of each group, less and less often.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dljob.control.fields import part, text
from dljob.control.model import Object, Pod
from dljob.kube.api import ApiError, Kube
from dljob.kube.resources import CORE_EVENTS
from dljob_operator.references import Seen

log = logging.getLogger(__name__)

AFTER = 5.0
"""Seconds that a pod may take before its Events are read: most need less."""
EVERY = 10.0
"""Seconds to the second look; twice as long each time."""
DOUBLINGS = 8
"""More are not counted: it is LONGEST long before."""
LONGEST = 60.0
OF_CONTAINERS = ("Failed", "BackOff")
"""Reasons of Events that say nothing by themselves; the container's status has a better one in a moment."""
GROUPS = 4
"""So many groups of pods are asked about, the head's first."""


@dataclass(slots=True)
class Hang:
    """A pod or a RayCluster that hangs."""

    due: float
    """When its Events are read next, on the monotonic clock."""
    looks: int = 0
    reason: str = ""
    words: str = ""


async def told(kube: Kube, namespace: str, seen: Seen, known: dict[str, Hang], now: float) -> tuple[Seen, float | None]:
    """What is seen, with the trouble that Events tell of, and the seconds until the next look; None: nothing hangs.

    Args:
        kube: the API server.
        namespace: where it is.
        seen: a RayCluster and its pods.
        known: what was found of them before, by uid; kept here.
        now: the monotonic clock.
    """
    idle = _ignored(seen.cluster)
    hanging = [*([idle] if idle else []), *_spokesmen(seen.pods)]
    for uid in known.keys() - set(hanging):
        del known[uid]
    for uid in hanging:
        hang = known.setdefault(uid, Hang(now + AFTER))
        if now >= hang.due:
            hang.due = now + min(LONGEST, EVERY * 2.0 ** min(hang.looks, DOUBLINGS))
            hang.looks += 1
            await _look(kube, namespace, uid, hang)
    wait = min((hang.due for hang in known.values()), default=None)
    pods = tuple(_troubled(pod, known.get(pod.uid)) for pod in seen.pods)
    objection = (known[idle].reason, known[idle].words) if idle else ("", "")
    return replace(seen, pods=pods, objection=objection), None if wait is None else max(wait - now, 0.0)


def _ignored(cluster: Object | None) -> str:
    """The uid of a RayCluster that KubeRay has written nothing to; empty when it has."""
    told = (
        part(cluster, "status")
        or part(cluster, "spec").get("suspend")
        or text(cluster, "metadata", "deletionTimestamp")
    )
    return "" if told else text(cluster, "metadata", "uid")


def _spokesmen(pods: Sequence[Pod]) -> list[str]:
    """The first pod of each group that has a node and no containers, and that nobody says anything of: uids."""
    first: dict[tuple[bool, str], Pod] = {}
    for pod in pods:
        if pod.phase == "Pending" and pod.node and not pod.trouble and not pod.leaving:
            first.setdefault((pod.head, pod.group), pod)
    return [pod.uid for pod in first.values()][:GROUPS]


async def _look(kube: Kube, namespace: str, uid: str, hang: Hang) -> None:
    try:
        events = await kube.list(CORE_EVENTS, namespace, fields=f"involvedObject.uid={uid}")
    except ApiError as error:
        log.warning("%s: cannot read the Events of %s: %s", namespace, uid, error.message)
        return
    last = max(events, key=_when, default=None)
    # Else it got on meanwhile.
    bad = last is not None and last.get("type") == "Warning" and last.get("reason") not in OF_CONTAINERS
    hang.reason, hang.words = (text(last, "reason"), text(last, "message").strip()) if bad else ("", "")


def _when(event: Object) -> tuple[str, bool]:
    """When it happened last; a Warning comes after what happened in the same second."""
    return max(_times(event))[:19], event.get("type") == "Warning"


def _times(event: Object) -> Iterator[str]:
    yield text(event, "metadata", "creationTimestamp")
    yield text(event, "lastTimestamp")
    yield text(event, "eventTime")
    yield text(event, "series", "lastObservedTime")


def _troubled(pod: Pod, hang: Hang | None) -> Pod:
    if hang is None or not hang.reason:
        return pod
    return replace(pod, trouble=f"{hang.reason}: {hang.words}", trouble_reason=hang.reason)
