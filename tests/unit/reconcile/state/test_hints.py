"""What to do next, behind the words of whoever says what is wrong."""

from __future__ import annotations

import pytest

from dljob.kube.head import TOKEN_REFUSED
from dljob.reconcile.state.hints import advised


@pytest.mark.parametrize(
    ("reason", "words", "step"),
    [
        ("ErrImageNeverPull", "image is not present with pull policy of Never", "imagePullPolicy"),
        ("ErrImagePull", "ErrImagePull: container ray-head: not found", "correct the image, or its imagePullSecrets"),
        ("ErrImagePull", "ErrImagePull: container dljob-init: not found", "the operator's --init-image"),
        ("CrashLoopBackOff", "CrashLoopBackOff: container dljob-init: back-off", "kubectl logs"),
        ("ErrImagePull", "ErrImagePull: container dljob-image: not found", "correct the image, or its"),
        ("CrashLoopBackOff", "CrashLoopBackOff: container dljob-image: back-off", "correct nodeGroups[].image"),
        ("OOMKilled", "OOMKilled: container ray-worker ended with exit code 137 (OOMKilled)", "give it more memory"),
        ("Error", "Error: container ray-worker ended with exit code 137", "it was killed: give it more memory, or see"),
        ("CreateContainerConfigError", 'secret "keys" not found', "create what is missing"),
        ("Unschedulable", '0/1 nodes are available: persistentvolumeclaim "x" not found.', "create the claim"),
        ("Unschedulable", "pod has unbound immediate PersistentVolumeClaims", "a volume or a provisioner"),
        ("Unschedulable", "0/3 nodes are available: 3 Insufficient cpu.", "make room, or ask for less"),
        ("FailedAttachVolume", 'Multi-Attach error for volume "v" Volume is already used', "ReadWriteMany"),
        (
            "FailedCreateHeadPod",
            'error looking up service account x/y: serviceaccount "y" not found',
            "service account",
        ),
        ("FailedCreateHeadPod", "violates PodSecurity", "say so in head.template"),
        ("", f"submission j-1: {TOKEN_REFUSED} (HTTP 403): Forbidden", "restore that key, or delete the RayCluster"),
    ],
)
def test_a_message_comes_first_and_the_hint_behind_it(reason: str, words: str, step: str):
    found, _, advice = advised(reason, words).partition("; ")
    assert found == words.rstrip(".")
    assert step in advice


@pytest.mark.parametrize(
    ("words", "rest"),
    [
        (
            "0/1 nodes are available: 1 x. no new claims to deallocate, preemption: 0/1 nodes are available: 1 y.",
            "0/1 nodes are available: 1 x",
        ),
        ("0/2 nodes are available: 2 x. preemption: 0/2 nodes are available: 2 y.", "0/2 nodes are available: 2 x"),
        ("preemption: of nobody", "preemption: of nobody"),
    ],
)
def test_the_schedulers_words_on_preemption_are_left_out(words: str, rest: str):
    assert advised("Unschedulable", words) == f"{rest}; make room, or ask for less; the pod then goes on by itself"


def test_an_unknown_message_stands_without_a_hint():
    assert advised("Evicted", "The node was low on memory.") == "The node was low on memory."
