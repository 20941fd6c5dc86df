"""Pods that hang before their containers are made: why stands in their Events alone (a volume, a sandbox, an address).

Events are read by and by: of a pod that hangs for seconds, of one pod of each group, less and less often.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dljob.control.fields import text
from dljob.control.model import Object, Pod
from dljob.kube.api import ApiError, Kube
from dljob.kube.resources import CORE_EVENTS

log = logging.getLogger(__name__)

AFTER = 5.0
"""Seconds that a pod may take before its Events are read: most need less."""
EVERY = 10.0
"""Seconds to the second look; twice as long each time."""
LONGEST = 60.0
GROUPS = 4
"""So many groups of pods are asked about, the head's first."""


@dataclass(slots=True)
class Hang:
    """A pod that hangs."""

    due: float
    """When its Events are read next, on the monotonic clock."""
    looks: int = 0
    reason: str = ""
    words: str = ""


async def told(
    kube: Kube, namespace: str, pods: Sequence[Pod], known: dict[str, Hang], now: float
) -> tuple[tuple[Pod, ...], float | None]:
    """The pods, with the trouble that Events tell of, and the seconds until the next look; None: nothing hangs.

    Args:
        kube: the API server.
        namespace: of the pods.
        pods: as the cache has them.
        known: what was found of them before, by uid; kept here.
        now: the monotonic clock.
    """
    hanging = _spokesmen(pods)
    for uid in known.keys() - hanging.keys():
        del known[uid]
    for uid in hanging:
        hang = known.setdefault(uid, Hang(now + AFTER))
        if now >= hang.due:
            hang.due = now + min(LONGEST, EVERY * 2.0**hang.looks)
            hang.looks += 1
            await _look(kube, namespace, uid, hang)
    wait = min((hang.due for hang in known.values()), default=None)
    return tuple(_troubled(pod, known.get(pod.uid)) for pod in pods), None if wait is None else max(wait - now, 0.0)


def _spokesmen(pods: Sequence[Pod]) -> Mapping[str, Pod]:
    """The first pod of each group that has a node and no containers, and that nobody says anything of; by uid."""
    first: dict[tuple[bool, str], Pod] = {}
    for pod in pods:
        if pod.phase == "Pending" and pod.node and not pod.trouble and not pod.leaving:
            first.setdefault((pod.head, pod.group), pod)
    return {pod.uid: pod for pod in list(first.values())[:GROUPS]}


async def _look(kube: Kube, namespace: str, uid: str, hang: Hang) -> None:
    try:
        events = await kube.list(CORE_EVENTS, namespace, fields=f"involvedObject.uid={uid}")
    except ApiError as error:
        log.warning("%s: cannot read the Events of pod %s: %s", namespace, uid, error.message)
        return
    last = max(events, key=_when, default=None)
    bad = last is not None and last.get("type") == "Warning"  # else it got on meanwhile
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
