"""Trouble that only Events explain: pods stuck before their containers exist or ended by a probe, refused RayClusters.

Events are read sparingly: only of objects stuck for seconds, of one pod of each group, and at growing intervals.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dljob.kube.api import ApiError, Kube
from dljob.kube.resources import CORE_EVENTS
from dljob.reconcile.state.context import seconds
from dljob.reconcile.state.fields import part, text
from dljob.reconcile.state.model import Object, Pod
from dljob.reconcile.state.reasons import FAILED_PROBES
from dljob_operator.controller.references import ClusterView

log = logging.getLogger(__package__)

AFTER = 5.0
"""Time, in seconds, before a pending pod's Events are read; most pods need less."""
EVERY = 10.0
"""Delay of the second look, in seconds; it doubles with each look."""
DOUBLINGS = 8
"""Most doublings; LONGEST is reached long before."""
LONGEST = 60.0
OF_CONTAINERS = ("Failed", "BackOff")
"""Reasons of Events to skip: the container's status has a better one in a moment."""
_OF_ENDS = ("Error", "Completed", "CrashLoopBackOff")
"""Reasons of the status of a container that ended, which do not tell by whom."""
NOT_FOUND = {"configmap": "ConfigMapNotFound", "secret": "SecretNotFound"}
"""Reason by kind of a missing volume source, for which the kubelet says FailedMount in both cases."""
_FAILED_PROBE = re.compile(r"failed (liveness|startup) probe")
"""The kubelet (1.36) on a container that it ends, in an Event with reason Killing."""
_MISSING = re.compile(r'\b(configmap|secret) "[^"]*" not found')
GROUPS = 4
"""Most groups of pods that are looked at, the head's first."""


@dataclass(slots=True)
class Hang:
    """A stuck pod or RayCluster."""

    next_look: float
    """Monotonic time of the next look at its Events."""
    looks: int = 0
    reason: str = ""
    words: str = ""


async def add_pod_problems(
    kube: Kube, namespace: str, cluster_view: ClusterView, known: dict[str, Hang], now: float
) -> tuple[ClusterView, float | None]:
    """Add the trouble from Events to a view; return it with the seconds until the next look (None: nothing is stuck).

    Args:
        kube: the API server.
        namespace: namespace of the cluster.
        cluster_view: a RayCluster and its pods.
        known: earlier findings by uid, updated here.
        now: the monotonic clock.
    """
    # 1. choose the stuck objects; 2. forget those stuck no longer; 3. read the Events of those that are due
    idle = _ignored(cluster_view.cluster)
    ended = {pod.uid: pod.ended_start for pod in cluster_view.pods if _has_ended(pod)}
    hanging = [*([idle] if idle else []), *_spokesmen(cluster_view.pods)]
    for uid in known.keys() - set(hanging):
        del known[uid]
    for uid in hanging:
        # The Events of an end are there before it is.
        hang = known.setdefault(uid, Hang(now if uid in ended else now + AFTER))
        if now >= hang.next_look:
            # The cap on the exponent keeps the power finite for a pod that is stuck for days.
            hang.next_look = now + min(LONGEST, EVERY * 2.0 ** min(hang.looks, DOUBLINGS))
            hang.looks += 1
            await _read_events(kube, namespace, uid, hang, ended.get(uid))
    wait = min((hang.next_look for hang in known.values()), default=None)
    pods = tuple(_troubled(pod, known.get(pod.uid)) for pod in cluster_view.pods)
    objection = (known[idle].reason, known[idle].words) if idle else ("", "")
    return replace(cluster_view, pods=pods, objection=objection), None if wait is None else max(wait - now, 0.0)


def _ignored(cluster: Object | None) -> str:
    """Return the uid of a RayCluster without any status from KubeRay; empty when it has one."""
    # A suspended or deleted cluster is left alone by KubeRay on purpose.
    has_sign = (
        part(cluster, "status")
        or part(cluster, "spec").get("suspend")
        or text(cluster, "metadata", "deletionTimestamp")
    )
    return "" if has_sign else text(cluster, "metadata", "uid")


def _spokesmen(pods: Sequence[Pod]) -> list[str]:
    """Return one pod's uid for each group: scheduled, without containers or a known trouble, or with an ended one."""
    first: dict[tuple[bool, str], Pod] = {}
    for pod in pods:
        # A pod without a node has a condition of the scheduler instead, which its digest reads.
        waits = pod.phase == "Pending" and pod.node and not pod.trouble and not pod.leaving
        if waits or _has_ended(pod):
            first.setdefault((pod.head, pod.group), pod)
    return [pod.uid for pod in first.values()][:GROUPS]


def _has_ended(pod: Pod) -> bool:
    """Whether the pod's Ray container has ended, for a reason that its status does not tell, and is not ready again."""
    return bool(pod.ended_start) and not pod.ready and not pod.leaving and pod.trouble_reason in _OF_ENDS


async def _read_events(kube: Kube, namespace: str, uid: str, hang: Hang, ended_start: float | None) -> None:
    """Read what the Events say of a pod or RayCluster; `ended_start` as in `Pod`, for one whose container has ended."""
    try:
        events = await kube.list(CORE_EVENTS, namespace, fields=f"involvedObject.uid={uid}")
    except ApiError as error:
        log.warning("%s: cannot read the Events of %s: %s", namespace, uid, error.message)
        return
    if ended_start is not None:
        hang.reason, hang.words = _failed_probe(events, ended_start)
        return
    last = max(events, key=_when, default=None)
    # A later Normal Event, or none: the pod got on meanwhile.
    bad = last is not None and last.get("type") == "Warning" and last.get("reason") not in OF_CONTAINERS
    hang.reason, hang.words = (
        _reason_with_kind(text(last, "reason"), text(last, "message").strip()) if bad else ("", "")
    )


def _failed_probe(events: Sequence[Object], since: float) -> tuple[str, str]:
    """Return (reason, message) for the probe by which the kubelet ended the container that had started at `since`."""
    for event in events:
        match = _FAILED_PROBE.search(text(event, "message"))
        if match and text(event, "reason") == "Killing" and (seconds(max(_times(event))) or 0.0) >= since:
            return FAILED_PROBES[match[1]], f"its {match[1]} probe failed, so the kubelet ended it"
    return "", ""


def _reason_with_kind(reason: str, words: str) -> tuple[str, str]:
    """Replace the reason of an Event about a missing object by one with its kind, as `kubectl get` shows only that."""
    missing = _MISSING.search(words) if reason == "FailedMount" else None
    return (NOT_FOUND[missing[1]] if missing else reason), words


def _when(event: Object) -> tuple[str, bool]:
    """Return the latest time of an Event, for sorting; a Warning counts as later within the same second."""
    # Whole seconds: `eventTime` has microseconds, the other times have none.
    return max(_times(event))[:19], event.get("type") == "Warning"


def _times(event: Object) -> Iterator[str]:
    yield text(event, "metadata", "creationTimestamp")
    yield text(event, "lastTimestamp")
    yield text(event, "eventTime")
    yield text(event, "series", "lastObservedTime")


def _troubled(pod: Pod, hang: Hang | None) -> Pod:
    if hang is None or not hang.reason:
        return pod
    end_words = f"; {pod.trouble}" if pod.trouble else ""
    return replace(pod, trouble=f"{hang.reason}: {hang.words}{end_words}", trouble_reason=hang.reason)
