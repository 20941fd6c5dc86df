"""Causes on a real Kubernetes: pods that cannot start, and the product's own fault files."""

from __future__ import annotations

import os

from cause import Cause
from planting import shell

STEPPING = """
    import time
    from dljob import Worker, progress
    class Main(Worker):
        def run(self):
            for step in range(1, 10000):
                print("step", step, flush=True)
                progress(step)
                time.sleep(0.2)
"""
ROLE = "- {name: main, entrypoint: {class: work.Main}, resources: {cpu: 250m}, restartPolicy: {maxRestarts: 3}}"
SMALL = "head: {cpu: 250m, memory: 2Gi}\nmaster: {cpu: 100m, memory: 512Mi}\n"
STARTS_S = 240.0
"""Until pods run, or the operator has said why they do not."""
STUCK_S = 45.0
"""Until the kubelet has tried twice what cannot be done."""

CHAOS = """
dljob chaos exam faults.yaml -k -n $EXAM_NAMESPACE --yes &
for _ in $(seq 20); do kill -0 $! 2>/dev/null || { wait $!; exit; }; sleep 0.5; done
"""
"""The command waits until a fault of some seconds is over: the answer is asked for before."""


def missing() -> str:
    """Say what is missing for a cluster with pods and the operator."""
    if os.environ.get("KUBECONFIG"):
        return ""
    return "KUBECONFIG of a cluster with the operator: make kube-up NODE=1, then tests/kube/README.md"


def never_starts(name: str, kind: str, says: str, role: str, *, spec: str = "", before: str = "") -> Cause:
    """Return a cause that keeps pods from running."""
    return Cause(
        name=name,
        group="Kubernetes",
        program=STEPPING,
        roles=role,
        spec=SMALL + spec,
        before=before,
        kind=kind,
        code=(15,),
        says=(says,),
        ends=False,
        starts_s=STUCK_S,
        limit_s=STARTS_S,
        missing=missing,
    )


def injected(name: str, fault: str, kind: str, whom: str, code: tuple[int, ...] = ()) -> Cause:
    """Return a cause that a fault file injects into a running job."""
    return Cause(
        name=name,
        group="Kubernetes",
        program=STEPPING,
        roles=ROLE,
        spec=SMALL,
        files={"faults.yaml": fault},
        acts=(shell(CHAOS, after="step 10"),),
        kind=kind,
        code=code,
        whom=whom,
        ends=False,
        limit_s=STARTS_S,
        missing=missing,
    )


CAUSES = (
    never_starts(
        "image-that-cannot-be-pulled",
        "ImagePull|ImagePullBackOff|ErrImagePull",
        "no.such.registry",
        ROLE,
        spec="image: no.such.registry/train:v9\n",
    ),
    never_starts(
        "config-map-that-is-not-there",
        "CreateContainerConfigError|ConfigMapNotFound",
        "nowhere",
        ROLE,
        spec="envFrom: [{configMapRef: {name: nowhere}}]\n",
    ),
    never_starts(
        "secret-that-is-not-there",
        "CreateContainerConfigError|SecretNotFound",
        "nowhere",
        ROLE,
        spec="envFrom: [{secretRef: {name: nowhere}}]\n",
    ),
    never_starts(
        "more-processors-than-any-node",
        "Unschedulable|NeverFits|DoesNotFit",
        "cpu",
        ROLE.replace("cpu: 250m", "cpu: 900"),
    ),
    never_starts(
        "quota-of-the-namespace",
        "Unschedulable|quota",
        "quota",
        ROLE,
        before="kubectl -n $EXAM_NAMESPACE create quota none --hard=pods=0",
    ),
    injected("rank-killed-in-its-pod", "- {when: {time: 1}, target: main/0, fault: kill}", "Killed", "main/0"),
    injected(
        "rank-out-of-memory-in-its-pod",
        "- {when: {time: 1}, target: main/0, fault: oom}",
        "OOMKilled",
        "main/0",
        (11,),
    ),
    injected(
        "raylet-of-a-pod-killed", "- {when: {time: 1}, target: node/0, fault: kill}", "NodeLost", "node|pod|raylet"
    ),
    injected(
        "pod-frozen", "- {when: {time: 1}, target: node/0, fault: stop, seconds: 60}", "NodeFrozen", "node|pod", (13,)
    ),
    injected("pod-deleted", "- {when: {time: 1}, target: pod/0, fault: kill}", "Preempted|NodeLost", "node|pod"),
    injected(
        "pod-evicted", "- {when: {time: 1}, target: pod/0, fault: leave, seconds: 10}", "Preempted", "node|pod", (14,)
    ),
    injected(
        "master-killed-in-the-head",
        "- {when: {time: 1}, target: master, fault: kill}",
        "MasterRestarted|Killed",
        "master",
    ),
)
