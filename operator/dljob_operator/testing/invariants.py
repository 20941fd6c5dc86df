"""Invariants of the operator, checked at each change and at the end of a story."""

from __future__ import annotations

from dljob.reconcile.state import accept, names, reasons
from dljob.reconcile.state.context import seconds
from dljob.reconcile.state.fields import items, number, part, text
from dljob.reconcile.state.model import Object, Observed, ReconcileResult
from dljob.reconcile.state.steps import ENDINGS, Ending
from dljob.reconcile.status.phases import OF_ENDING
from dljob.spec.status import TERMINAL
from dljob_operator.testing.api_server import Body
from dljob_operator.testing.head_process import HeadProcess
from dljob_operator.testing.kuberay_model import is_leaving, node_of
from dljob_operator.testing.simulated_process import SimulatedProcess
from dljob_operator.testing.world import OpenOrder, StoryState, last_checkpoint

MOST_WRITES = 40
"""Most writes in a row without an event from outside."""
CLOSE_S = 0.1
LEASE_S, LEAVE_S = 30.0, 55.0
UNCOUNTED = (
    *(reasons.SPEC_CHANGED, reasons.OPERATOR_UPGRADED, reasons.PREEMPTED, reasons.SUSPENDING),
    reasons.JOB_RESUMED,
)
"""Reasons of a new attempt that do not count against maxClusterRestarts."""


def wrote(w: StoryState, operator: SimulatedProcess) -> None:
    """Check that writes have reasons: no storm of them."""
    if w.unprovoked > MOST_WRITES:
        w.broken(f"storm: operator {operator.number} writes once more, {w.unprovoked} times for nothing new")


def decided(w: StoryState, observed: Observed, outcome: ReconcileResult) -> None:
    """Check that no attempt is lost for a RayCluster, or a head's memory, that still exists."""
    before, after = number(observed.job, "status", "attempt") or 1, number(outcome.status, "attempt")
    lost = after > before and text(outcome.status, "reason") == "ClusterGone"
    uid = text(observed.job, "status", "rayCluster", "uid")
    if lost and any(body["metadata"]["uid"] == uid for body in w.server.objects_of("RayCluster")):
        w.broken("false loss: the RayCluster is there, and its attempt is given up")
    # With GCS fault tolerance a head keeps its memory over a restart.
    keeps_memory = names.SURVIVES in part(observed.cluster, "metadata", "annotations")
    known = text(observed.job, "status", "rayCluster", "sessionName")
    if after > before and keeps_memory and known and text(outcome.status, "reason") == reasons.HEAD_LOST:
        w.broken("false loss: the head has its memory, and its attempt is given up")


def check_submission(w: StoryState, head: HeadProcess, id_: str) -> None:
    """Check a submission: no other head took its id, the status names it, and no rank under another head lives."""
    before = w.taken.setdefault(id_, head)
    if before is not head:
        w.broken(f"twice: {id_} is taken by {head.session}, and was by {before.session}")
    status = part(w.job, "status")
    # Another operator may write in the milliseconds between the look at the status and the submission.
    close = len(w.alive) > 1 and w.agenda.now - w.wrote_at < CLOSE_S
    # The attempt of a slow request may be given up before it arrives: its RayCluster is then on its way out.
    late = w.slow.arriving and any(text(body, "status", "submissionId") == id_ for _, body, _ in w.log)
    if w.job is not None and text(status, "submissionId") != id_ and not (close or late):
        w.broken(f"unwritten: {id_} is submitted, and the status says {text(status, 'submissionId') or 'none'}")
    carried, attempt = part(status, "carried"), number(status, "attempt") or 1
    if 0 < number(carried, "attempt") < attempt and w.handed != last_checkpoint(carried) and not (close or late):
        w.broken(f"checkpoint: {id_} goes on from {w.handed}, and the last one is {last_checkpoint(carried)}")
    if not w.shared and any(m.attempt != attempt for m in head.masters.values()) and not (close or late):
        w.broken(f"old cluster: {id_} of attempt {attempt} runs on {head.cluster}, which ran another attempt")
    for other_head in w.nature.heads:
        if other_head is not head and w.nature.rank_lives(other_head, LEASE_S):
            w.broken(f"two live: {id_} begins while ranks of {other_head.session} live")


def changed(w: StoryState, kind: str, body: Body, *, is_deleted: bool) -> None:
    """Check what a change of an object may violate."""
    if kind == "RayCluster" and not is_deleted and not w.shared:
        cluster_metas = [cluster["metadata"] for cluster in w.server.objects_of("RayCluster")]
        # One that a slow request makes is deleted when a watch has brought it; else it is `left` at the end.
        if w.slow.arriving:
            w.slow.made.add(body["metadata"]["uid"])
        live_names = [
            meta["name"] for meta in cluster_metas if "deletionTimestamp" not in meta and meta["uid"] not in w.slow.made
        ]
        if len(live_names) > 1:
            w.broken(f"two clusters: {', '.join(live_names)}")
    if kind == "DLJob":
        if is_deleted:
            _check_deleted(w, body)
        w.wrote_at = w.agenda.now
        resumed = _settle_orders(w, body)
        _status(w, part(w.last, "status"), part(body, "status"), body, resumed=resumed)
        w.last = body


def _check_deleted(w: StoryState, body: Body) -> None:
    """Check that a deleted DLJob leaves no job running on a RayCluster that stays."""
    deletion_time = seconds(text(body, "metadata", "deletionTimestamp"))
    if not w.shared or (deletion_time is not None and w.agenda.now - deletion_time >= LEAVE_S):
        return
    for head in w.nature.heads:
        if head.alive and any(m.phase not in TERMINAL and not m.gone_at and not m.away for m in head.masters.values()):
            w.broken("left running: the DLJob goes while its job runs on a RayCluster that stays")


def _settle_orders(w: StoryState, body: Body) -> bool:
    """Check that each order to resume is answered by what the job was since then; return whether one is obeyed.

    An answer may come late: the order arrives while an operator writes its last decision.
    """
    resumed = False
    value = text(body, "metadata", "annotations", names.RESUME)
    if value != text(w.last, "metadata", "annotations", names.RESUME):
        masters = [master for head in w.nature.heads if head.alive for master in head.masters.values()]
        w.orders[value] = OpenOrder(
            w.phase, had_ended=bool(masters) and all(master.phase in TERMINAL for master in masters)
        )
    ended = text(body, "status", "phase") in ("Failed", "Stopped")
    stops = names.STOP in part(body, "metadata", "annotations")
    resumable = ended and not stops and bool(last_checkpoint(part(body, "status", "carried")))
    answers = {entry["at"]: entry for entry in items(body, "status", "lastCommands") if entry["kind"] == "resume"}
    for at, order in list(w.orders.items()):
        if at not in answers or answers[at]["state"] != "Sent":
            order.was_resumable |= resumable
            order.was_unresumable |= not resumable
        if at in answers:
            del w.orders[at]
            obeyed = answers[at]["state"] == "Sent"
            was_over = order.had_ended or order.phase in ("Failed", "Stopped")
            if not (order.was_resumable and was_over if obeyed else order.was_unresumable):
                w.broken(f"order: given in phase {order.phase}, it is {answers[at]['state']}: {answers[at]['message']}")
            resumed = resumed or obeyed
    return resumed


def _status(w: StoryState, old: Object, new: Object, body: Body, *, resumed: bool) -> None:
    if old != new:
        _forward(w, old, new, resumed=resumed)
        _allowed(w, old, new, body)
        _verdict(w, new)
        if text(new, "phase") == "Suspended" != text(old, "phase"):
            _suspended(w)


def _forward(w: StoryState, old: Object, new: Object, *, resumed: bool) -> None:
    """Check that phase, attempt, checkpoint and counts go forward, but for a job that is resumed with new budgets."""
    before, after = number(old, "attempt") or 1, number(new, "attempt") or 1
    saved, last = (last_checkpoint(part(status, "carried"))[2:] for status in (new, old))
    if saved < last and text(new, "phase") != "Succeeded":
        w.broken(f"checkpoint: {part(old, 'carried')} became {part(new, 'carried')}")
    if text(old, "phase") in TERMINAL and text(new, "phase") != text(old, "phase") and not resumed:
        w.broken(f"back: {text(old, 'phase')} became {text(new, 'phase')}")
    if resumed:
        w.lost = 0
        old = {}
    if after not in ((before + 1,) if resumed else (before, before + 1)):
        w.broken(f"attempt: {before} became {after}")
    for level, count in part(old, "restarts").items():
        if number(new, "restarts", level) < count:
            w.broken(f"count: {count} restarts at level {level} became {number(new, 'restarts', level)}")


def _allowed(w: StoryState, old: Object, new: Object, body: Body) -> None:
    """Check that there are no more attempts than the spec allows."""
    limit = accept.live(accept.source(body)).max_cluster_restarts
    before, after = number(old, "attempt") or 1, number(new, "attempt") or 1
    if after > before and text(new, "reason") not in UNCOUNTED:
        w.lost += 1
        if w.lost > limit:
            w.broken(f"budget: attempt {after} begins for {text(new, 'reason')}, {limit} restarts are allowed")
    used = number(new, "restarts", "cluster")
    if used > max(limit, number(old, "restarts", "cluster")):
        w.broken(f"budget: {used} restarts of the cluster, {limit} are allowed")


def _verdict(w: StoryState, new: Object) -> None:
    """Check that there is one terminal condition, the one of the phase, and that it is true."""
    true_conditions = {
        text(condition, "type") for condition in items(new, "conditions") if condition.get("status") == "True"
    }
    over: list[Ending] = [kind for kind in ENDINGS if kind in true_conditions]
    phase = text(new, "phase")
    if [OF_ENDING[kind] for kind in over] != ([phase] if phase in TERMINAL else []):
        w.broken(f"verdict: phase {phase}, and {' and '.join(over) or 'no terminal condition'}")
    if text(new, "phase") == "Succeeded" and not any(
        m.phase == "Succeeded" for head in w.nature.heads for m in head.masters.values()
    ):
        w.broken("verdict: Succeeded, and nobody did")


def _suspended(w: StoryState) -> None:
    """Check that a suspended job has neither RayCluster nor pods."""
    remaining = [body["metadata"]["name"] for kind in ("RayCluster", "Pod") for body in w.server.objects_of(kind)]
    if remaining and len(w.alive) == 1 and not w.shared:
        w.broken(f"not gone: the job is suspended, and {', '.join(remaining)} are there")


def _of_now(w: StoryState, pod: Body) -> bool:
    """Whether an operator can remove a pod: on a lost node only while the DLJob is there."""
    return node_of(pod) not in w.nature.dead or w.job is not None


def at_the_end(w: StoryState) -> list[str]:
    """Return the violations long after the last fault: no end, or something left."""
    job = w.job
    clusters = [body["metadata"]["name"] for body in w.server.objects_of("RayCluster") if not w.shared]
    pods = [body["metadata"]["name"] for body in w.server.objects_of("Pod") if not w.shared and _of_now(w, body)]
    if job is None:
        return [f"left: {', '.join([*clusters, *pods])} of a DLJob that is gone"] if clusters or pods else []
    violations: list[str] = []
    if text(job, "metadata", "deletionTimestamp"):
        violations.append(f"held: the DLJob is not let go: {job['metadata'].get('finalizers')}")
    status = part(job, "status")
    if text(status, "phase") not in TERMINAL:
        return [
            *violations,
            f"no end: {text(status, 'phase')}/{text(status, 'reason')}: {text(status, 'message')[:200]}",
        ]
    if names.FINALIZER in (job["metadata"].get("finalizers") or ()):
        violations.append("held: the job is over, and its DLJob is still held")
    leaving = [body["metadata"]["name"] for body in w.server.objects_of("Pod") if is_leaving(body) and _of_now(w, body)]
    stuck = [] if w.shared else leaving  # pods of a RayCluster that is there are its owner's matter
    if stuck:
        violations.append(f"stuck: {', '.join(stuck)} on nodes that are lost")
    if w.orders.keys() & {text(job, "metadata", "annotations", names.RESUME)}:
        violations.append("order: the last order to resume is neither obeyed nor refused")
    live = accept.live(accept.source(job))
    if len(clusters) > live.retain:
        violations.append(f"left: {', '.join(clusters)} of a job that is over")
    if live.ttl is not None:
        violations.append("left: ttlSecondsAfterFinished have passed, and the DLJob is there")
    return violations
