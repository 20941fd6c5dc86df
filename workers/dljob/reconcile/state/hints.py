"""Advice: the next step after a message of the kubelet, scheduler, KubeRay or API server on a RayCluster or a pod."""

from __future__ import annotations

import re

from dljob.raycluster.pods import IMAGE_CHECK, INIT_CONTAINER

AGAIN = "the pod then goes on by itself"
IMAGE = "correct the image, or its imagePullSecrets"
INIT_IMAGE = "correct the operator's --init-image, or spec.image where it has none, or imagePullSecrets"
LOGS = "`kubectl logs` of that container, with --previous, says more"
KUBERAY_AGAIN = "KubeRay tries again by itself"
ANEW = "the job then begins anew by itself"
ROOM = f"make room, or ask for less; {AGAIN}"

OF_IMAGES = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
RESTRICTED = (
    "an image whose user is no root may say so in head.template and nodeGroups[].template:"
    f" {{spec: {{securityContext: {{runAsNonRoot: true, runAsUser: 1000}}}}}}; {ANEW}"
)
ANOTHER_KEY = (
    "the Secret of its token was made with another key of the operator's, or by somebody else: restore that key, or"
    " delete the RayCluster, and the next attempt has a Secret of its own"
)

BY_REASON = {
    **dict.fromkeys(OF_IMAGES, IMAGE),
    "ErrImageNeverPull": "bring the image to the node, or let it be pulled: imagePullPolicy",
    "CreateContainerConfigError": f"create what is missing; {AGAIN}",
    "CreateContainerError": "correct the container's command or mounts",
    **dict.fromkeys(("FailedMount", "ConfigMapNotFound", "SecretNotFound"), f"create what is missing; {AGAIN}"),
    "CrashLoopBackOff": LOGS,
    "Error": LOGS,
    "LivenessProbeFailed": f"give it more CPU and memory if its node is busy; {LOGS}",
    "StartupProbeFailed": f"give Ray longer by a startupProbe in the template, or see what it waits for: {LOGS}",
    "Unschedulable": ROOM,
    "CreationRefused": "allow it; it is tried again by itself",
    "NameTaken": "delete it, and the job goes on",
    "InvalidRayClusterSpec": f"correct the spec; {ANEW}",
    "InvalidRayClusterMetadata": f"correct the spec; {ANEW}",
    "FailedCreateHeadPod": f"allow the pod, or correct its template; {KUBERAY_AGAIN}",
    "FailedCreateWorkerPod": f"allow the pod, or correct its template; {KUBERAY_AGAIN}",
}
BY_WORDS = (
    *((f"{reason}: container {INIT_CONTAINER}", INIT_IMAGE) for reason in OF_IMAGES),
    *((f"{reason}: container {IMAGE_CHECK}", IMAGE) for reason in OF_IMAGES),
    (
        f"container {IMAGE_CHECK}",
        "the image of that pod needs a program `python`, with the Ray and dljob of the job: correct nodeGroups[].image",
    ),
    ("OOMKilled", "give it more memory"),
    ("exit code 137", "it was killed: give it more memory, or see the pod's Events for a probe that failed"),
    ("Multi-Attach", "a ReadWriteOnce volume is on one node at a time: use a claim with ReadWriteMany"),
    ("persistentvolumeclaim", f"create the claim; {AGAIN}"),
    ("PersistentVolumeClaims", f"the claim needs a volume or a provisioner; {AGAIN}"),
    ("violates PodSecurity", RESTRICTED),
    ("the head does not take the token", ANOTHER_KEY),
    ("service account", f"create the service account; {KUBERAY_AGAIN}"),
    ("exceeded quota", "raise the quota or give something back; it is tried again by itself"),
)
"""Substrings that are more specific than the reason; from the scheduler (1.36), the attach-detach controller,
admission.
"""


_PREEMPTION = re.compile(
    r"[.,;]? *(no new claims to deallocate, )?preemption: \d+/\d+ nodes are available: .*", re.DOTALL
)
"""The scheduler's (1.36) remark on preemption behind the reason, which tells a user of dljob nothing."""


def advised(reason: str, words: str) -> str:
    """Return the words, followed by advice where there is some."""
    words = _PREEMPTION.sub("", words)
    advice = next((step for phrase, step in BY_WORDS if phrase in words), "") or BY_REASON.get(reason, "")
    return f"{words.rstrip('.')}; {advice}" if advice else words
