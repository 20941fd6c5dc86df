"""When the launcher is posted to the head, and what is posted.

The id goes into the status first, with the head's pod and container; the POST comes in a later pass, and again until
Ray knows the id. Ray refuses an id that it has, and the shell adopts it; a head that restarted meanwhile knows none,
but is another container. So one attempt is one submission, wherever the operator dies and whatever the head does.

Where Ray's memory outlives its head the launcher is posted once more, under an id of its own, to each head that comes
with that memory: it finds the job, and waits for it.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from dljob.raycluster.acceptance import spec_text
from dljob.raycluster.pods import CARRIED_FILE, HOME_THERE, PACKAGES, SPEC_FILE
from dljob.reconcile.policies.attempts import outdated
from dljob.reconcile.state import accept, handover, names
from dljob.reconcile.state.accept import Refused, Terms
from dljob.reconcile.state.context import ReconcileContext
from dljob.reconcile.state.fields import part, text
from dljob.reconcile.state.model import Submit, Watch
from dljob.reconcile.state.steps import PolicyDecision, SubmitOrder


def submission(case: ReconcileContext) -> PolicyDecision | None:
    """Order the submission as soon as the head is ready, whatever the workers are; then post it."""
    if not case.head_ready:
        return None
    if not case.submitted and (case.head is None or not case.head.ready):
        # Its container is a part of the order: an id that is ordered for an unknown one may be taken by two.
        return PolicyDecision("the head is ready, and its pod is not seen so yet")
    if not case.submitted:
        return PolicyDecision("the head is ready: the submission is ordered", change=SubmitOrder())
    if case.kept and case.moved:
        return _again(case)
    if case.taken:
        return None
    if case.again:
        return _posted_again(case)
    if isinstance(case.terms, Refused):
        return PolicyDecision(f"waits for a better spec: {case.terms.reason}")
    if not case.ref and text(case.old, "attemptSpecHash") != case.terms.hash:
        # Its RayCluster has the old spec; its runtime environment would be the new one's.
        return PolicyDecision(
            "the spec was changed since the submission was ordered: Ray is asked whether it has taken that one"
        )
    if outdated(case):
        return PolicyDecision(
            "the operator was upgraded since the submission was ordered: Ray is asked whether it has taken it"
        )
    return PolicyDecision("the submission is ordered and Ray does not know it", actions=(launcher(case, case.terms),))


def _again(case: ReconcileContext) -> PolicyDecision | None:
    """Order the launcher once more: it went with its head, and the job did not."""
    if outdated(case):
        return None  # it would refuse the image's older dljob; the job goes on without it
    return PolicyDecision(
        "the head is another one with the memory of the last: the launcher is ordered again", change=SubmitOrder()
    )


def _posted_again(case: ReconcileContext) -> PolicyDecision | None:
    """Post what was ordered once more; whatever the spec is by now, the pods have what the attempt was made of.

    So does the launcher: the runtime environment is that of the attempt's ConfigMap, where the DLJob's may be another.
    """
    if isinstance(case.terms, Refused) or outdated(case):
        return None
    made_of = text(case.old, "attemptSpecHash")
    order = launcher(case, replace(case.terms, hash=made_of))
    if not case.ref and made_of != case.terms.hash:
        order = replace(order, spec_map=names.spec_map(case.cluster_name))
    return PolicyDecision("the launcher is ordered again and Ray does not know it", actions=(order,))


def launcher(case: ReconcileContext, terms: Terms) -> Submit:
    """The launcher's command line: nothing of it is from the user but Ray's version, which has a pattern."""
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
    session = case.recorded.get("sessionName", "") if case.again else ""
    return Submit(case.submission, case.cluster_name, case.address, argv, env, metadata, head, packages, session)


def _mounted(case: ReconcileContext) -> tuple[tuple[str, ...], dict[str, str]]:
    """What the launcher reads from the ConfigMap of the attempt; Ray keeps nothing."""
    carried = ("--carried", CARRIED_FILE) if handover.handed(case) else ()
    return ("--spec", SPEC_FILE, *carried), {}


def _packed(case: ReconcileContext) -> tuple[tuple[str, ...], dict[str, str]]:
    """The same for pods that mount nothing of ours: Ray keeps it, under names that say what is in it."""
    texts = {"--spec": spec_text(accept.blueprint(case.source, case.settings).manifest)}
    if carried := handover.handed(case):
        texts["--carried"] = carried
    packages: dict[str, str] = {}
    files: list[str] = []
    for flag, content in texts.items():
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        name = f"dljob-{case.submission}-{digest}.json"
        packages[name] = content
        files += [flag, f"{PACKAGES}{name}"]
    return (*files, "--home", HOME_THERE), packages


def watch(case: ReconcileContext) -> Watch | None:
    """Whom to keep asking: the head, from the order of the submission on."""
    if not case.submitted or case.replaced or not case.address or case.leaving:
        return None
    return Watch(case.cluster_name, case.address, names.job_uid(case.uid), case.submission)
