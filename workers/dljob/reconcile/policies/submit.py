"""Submission: when the launcher is posted to the head, and what is posted.

The status gets the id first, with the head's pod and container. The POST follows in a later pass and is repeated until
Ray knows the id. Ray refuses an id that it has, which the shell takes for success; a head that restarted in between
knows no id, but it is another container. So one attempt is one submission, even if the operator dies or the head
restarts at any point.

With GCS fault tolerance the launcher is posted once more to each later head with the same Ray state, under an id of its
own: it finds the running PrimeMaster and waits for the job (ADR 39).
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from dljob.raycluster.acceptance import spec_text
from dljob.raycluster.pods import CARRIED_FILE, HOME_IN_POD, PACKAGES, SPEC_FILE
from dljob.reconcile.policies.attempts import outdated
from dljob.reconcile.state import accept, handover, names
from dljob.reconcile.state.accept import Refused, Terms
from dljob.reconcile.state.context import ReconcileContext
from dljob.reconcile.state.fields import part, text
from dljob.reconcile.state.model import Submit, Watch
from dljob.reconcile.state.steps import PolicyDecision, SubmitOrder


def submission(case: ReconcileContext) -> PolicyDecision | None:
    """Order the submission once the head is ready, without waiting for workers; then post it."""
    if not case.head_ready:
        return None
    if not case.submitted and (case.head is None or not case.head.ready):
        # The order names the head's container. Without it two heads in a row could take the same id.
        return PolicyDecision("KubeRay reports a ready head, and the pod is not known as ready yet")
    if not case.submitted:
        return PolicyDecision("the head is ready: the submission is ordered", change=SubmitOrder())
    # Ordered, and the head is another one: with GCS fault tolerance the job lives, and only its launcher is gone.
    if case.keeps_state and case.moved:
        return _order_again(case)
    # Ray or PrimeMaster has confirmed it: the job has begun.
    if case.is_submitted:
        return None
    # From here on Ray does not know the id, or was not asked yet: POST, unless what would be posted is outdated.
    if case.resubmissions:
        return _posted_again(case)
    if isinstance(case.terms, Refused):
        return PolicyDecision(f"waits for a better spec: {case.terms.reason}")
    if not case.ref and text(case.old, "attemptSpecHash") != case.terms.hash:
        # The RayCluster has the old spec, and the launcher would get the new one's runtime environment.
        return PolicyDecision(
            "the spec was changed since the submission was ordered: waits until Ray tells whether it has that one"
        )
    if outdated(case):
        return PolicyDecision(
            "the operator was upgraded since the submission was ordered: waits until Ray tells whether it has it"
        )
    return PolicyDecision(
        "the submission is ordered, and Ray has none with its id", actions=(launcher(case, case.terms),)
    )


def _order_again(case: ReconcileContext) -> PolicyDecision | None:
    """Order the launcher once more: it died with its head, and the job did not."""
    if outdated(case):
        return None  # the image's older dljob would refuse this operator's launcher; the job goes on without one
    return PolicyDecision(
        "another head has the Ray state of the last one: the launcher is ordered again", change=SubmitOrder()
    )


def _posted_again(case: ReconcileContext) -> PolicyDecision | None:
    """Post the launcher that was ordered again, with the spec of the attempt.

    The spec may have been edited since. Pods and runtime environment are those of the attempt's ConfigMap, so the
    launcher takes both from there.
    """
    if isinstance(case.terms, Refused) or outdated(case):
        return None
    made_of = text(case.old, "attemptSpecHash")
    order = launcher(case, replace(case.terms, hash=made_of))
    if not case.ref and made_of != case.terms.hash:
        order = replace(order, spec_map=names.spec_map(case.cluster_name))
    return PolicyDecision("the launcher is ordered again, and Ray has no submission with its id", actions=(order,))


def launcher(case: ReconcileContext, terms: Terms) -> Submit:
    """Return the launcher's submission.

    Of the user's input the command line has only Ray's version, which has a pattern.
    """
    # The version of the attempt, also after the operator's default has changed.
    version = text(case.old, "effective", "rayVersion") or case.settings.ray_version
    files, packages = _packed(case) if case.ref else _mounted(case)
    argv = (
        *("python", "-m", "dljob.runtime.launcher", *files),
        *("--uid", names.job_uid(case.uid), "--attempt", str(case.attempt)),
        *("--ray", version, "--version", case.settings.version),
    )
    env = part(case.observed.job, "spec", "runtimeEnv")
    metadata = {
        names.LABEL_NAME: case.name,
        "dljob.io/namespace": case.meta["namespace"],
        names.LABEL_UID: case.uid,
        names.SPEC_HASH: terms.hash,
    }
    head = (case.recorded.get("headPod", ""), case.recorded.get("headContainer", ""))
    session = case.recorded.get("sessionName", "") if case.resubmissions else ""
    return Submit(case.submission, case.cluster_name, case.address, argv, env, metadata, head, packages, session)


def _mounted(case: ReconcileContext) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return (arguments, no packages) of the launcher in pods that mount the attempt's ConfigMap."""
    carried = ("--carried", CARRIED_FILE) if handover.handed(case) else ()
    return ("--spec", SPEC_FILE, *carried), {}


def _packed(case: ReconcileContext) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return (arguments, package -> content) of the launcher on an existing RayCluster, where Ray stores the files."""
    texts = {"--spec": spec_text(accept.blueprint(case.source, case.settings).manifest)}
    if carried := handover.handed(case):
        texts["--carried"] = carried
    packages: dict[str, str] = {}
    files: list[str] = []
    for flag, content in texts.items():
        # Ray keeps files by name: a name without the digest could serve the content of an earlier try.
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        name = f"dljob-{case.submission}-{digest}.json"
        packages[name] = content
        files += [flag, f"{PACKAGES}{name}"]
    return (*files, "--home", HOME_IN_POD), packages


def watch(case: ReconcileContext) -> Watch | None:
    """Return the head to poll, from the order of the submission until the attempt ends; None: no head."""
    if not case.submitted or case.replaced or not case.address or case.leaving:
        return None
    return Watch(case.cluster_name, case.address, names.job_uid(case.uid), case.submission, case.attempt)
