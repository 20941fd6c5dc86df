"""Repeated failures: one rule for exceptions, exit codes and signals decides that no restart would mend them.

The job ends when a rank (in a torch world: any of its ranks) fails twice in a row in the same way, without progress
in between, and with no other process to blame. A SIGKILL or SIGTERM may come from any process, so it counts only if
both incarnations ended before they were ready. Three incarnations in a row that each ended soon after their start are
a crash loop, whatever the signal. A rank of a world that ends with code 0 while others wait for it fails, too, and
again at the same step for good. A rank that hangs at the same line of the user's code twice in a row, with nothing
more done than the first time, would hang there again. Progress is a higher step of any role, a committed checkpoint,
or an hour in the phase Ready.
"""

from __future__ import annotations

from dljob.master.failure.policy import FailJob
from dljob.master.state import causes, early_end, limits, memory_overrides
from dljob.master.state.faults import Failure
from dljob.master.state.state import WHOLE_WORLD, ErrorMemory, RankKey
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Outcome, Reason
from dljob.telemetry import reasons
from dljob.telemetry.remedies import FAULTS, CauseKind

CRASH_LOOP_INCARNATIONS = 3
"""Consecutive short incarnations that are a crash loop."""
CRASH_LOOP_S = 30.0
"""Seconds after its start within which an incarnation of a crash loop ends."""
SETTLED_S = 3600.0
"""Seconds after which a ready rank counts as having made progress, whether it reports steps or not."""
_OUTSIDE_KILL_CODES = frozenset({None, causes.SIGKILLED, causes.SIGTERMED})
"""Exit codes of a process that may have been ended from outside; None: the exit code is unknown."""
_CAUSE_KINDS_FROM_OUTSIDE = frozenset({CauseKind.NODE, CauseKind.DEVICE, CauseKind.STOPPED})
_REASONS_BLAMING_OTHERS = frozenset(
    {
        *(reason for reason in Reason if FAULTS[reason].kind in _CAUSE_KINDS_FROM_OUTSIDE),
        *(Reason.IMAGE_PULL, Reason.HANG, Reason.STRAGGLER, Reason.UNHEALTHY),
    }
)
"""Reasons that blame a machine, a peer or a monitor; such an end breaks a row of repetitions."""
# Errors of dljob and of torch that only say that a peer is gone.
_ERRORS_OF_LOST_PEER = frozenset(
    {"CollectiveAbortedError", "DistBackendError", "DistNetworkError", "DistStoreError", "PeerLostError"}
)


def check_repetition(
    tx: StateTransaction, failure: Failure, *, is_late: bool = False, had_process: bool = True
) -> FailJob | None:
    """Return the end of the job where no restart would mend a failure; None: the rank may restart.

    The failure is remembered, for the next one. `is_late`: the rank was started again before its end was reported.
    `had_process`: it had a process that could end.
    """
    outcome = failure.outcome
    # The host knows that an import or a setup would fail again: no second incarnation is needed to see it.
    if outcome.fatal and outcome.reason in (Reason.USER_ERROR, Reason.IMPORT_ERROR):
        return FailJob(reasons.USER_ERROR_REPEATS, "it would fail again in the same way")
    if early_end.is_own_early_end(outcome):
        return _check_early_end(tx, failure)
    if failure.reports_lost_peer or failure.ended_by_master or outcome.error_type in _ERRORS_OF_LOST_PEER:
        return None
    if outcome.reason is Reason.HANG and outcome.frame:
        return _check_hang(tx, failure)
    error_key: RankKey = (failure.role, WHOLE_WORLD if tx.facts(failure.role).is_torch_world else failure.rank)
    last_error, rank_state = tx.last_errors.get(error_key), tx.ranks[failure.role, failure.rank]
    if outcome.reason in _REASONS_BLAMING_OTHERS or _only_reports_lost_process(outcome):
        _forget_error(tx, error_key)
        return None
    began_at = tx.now - limits.SAME_FAILURE_WINDOW_S if is_late else rank_state.process_ordered_at
    if not had_process or (began_at == 0.0 and not is_late) or (last_error is not None and began_at < last_error.at):
        return None  # it had no process, or an end of this process is already remembered
    was_ready = is_late or rank_state.ready_at > 0.0
    # At the first end, progress counts since the process began.
    last_step = None if last_error is None else last_error.step
    progress_since = began_at if last_error is None else last_error.at
    is_settled = rank_state.ready_at > 0.0 and tx.now - rank_state.ready_at >= SETTLED_S
    has_progressed = is_settled or _has_progressed(tx, outcome, last_step, progress_since)
    # The next process of a rank that gets more memory (`outOfMemory`) does not repeat this one.
    gets_memory = is_memory_kill(outcome) and memory_overrides.memory_policy_of(tx.job, failure.role) is not None
    is_short_incarnation = not (is_late or has_progressed or gets_memory) and tx.now - began_at <= CRASH_LOOP_S
    short_incarnation_count = 0
    if is_short_incarnation:
        short_incarnation_count = 1 if last_error is None else last_error.short_incarnation_count + 1
    # An error of a callee is known by its place there: the caller's line is the same for all of them.
    origin = outcome.origin or outcome
    new_error = ErrorMemory(
        origin.error_type, origin.frame, outcome.step, outcome.code, tx.now, was_ready, short_incarnation_count
    )
    tx.last_errors = tx.last_errors.set(error_key, new_error)
    can_repeat = not has_progressed and not is_memory_kill(outcome)
    if last_error is not None and can_repeat and _is_same_end(last_error, new_error):
        may_be_outside_kill = not outcome.error_type and outcome.code in _OUTSIDE_KILL_CODES
        proviso = ", both before it was ready" if may_be_outside_kill else ""
        return FailJob(reasons.USER_ERROR_REPEATS, f"{_describe_end(outcome)} twice, with no progress between{proviso}")
    if short_incarnation_count >= CRASH_LOOP_INCARNATIONS:
        explanation = (
            f"{short_incarnation_count} incarnations in a row ended within {CRASH_LOOP_S:.0f} s of their start"
        )
        return FailJob(reasons.CRASH_LOOP, f"a crash loop: {explanation}, with no progress")
    return None


def check_store_repetition(tx: StateTransaction, failure: Failure) -> FailJob | None:
    """Return the end of the job where the user's code in a SubMaster fails for the second time at the same place.

    The failure is remembered under the role's world. That a rank was ready in between is progress: the group had met.
    A torch store, which runs no user code, may always restart.
    """
    outcome = failure.outcome
    if outcome.reason not in (Reason.USER_ERROR, Reason.IMPORT_ERROR):
        return None
    if outcome.fatal:
        return FailJob(reasons.USER_ERROR_REPEATS, "it would fail again in the same way")
    key = (failure.role, WHOLE_WORLD)
    last_error = tx.last_errors.get(key)
    new_error = ErrorMemory(outcome.error_type, outcome.frame, outcome.step, outcome.code, tx.now, True)
    tx.last_errors = tx.last_errors.set(key, new_error)
    if last_error is None or not _is_same_end(last_error, new_error):
        return None
    if any(tx.base.ranks[failure.role, rank].ready_at > last_error.at for rank in tx.facts(failure.role).ranks):
        return None
    return FailJob(reasons.USER_ERROR_REPEATS, f"{_describe_end(outcome)} twice, with no progress between")


def _only_reports_lost_process(outcome: Outcome) -> bool:
    """Whether an exception only says that another process was lost, such as a child."""
    return bool(outcome.error_type) and outcome.reason in (Reason.UNKNOWN, Reason.KILLED)


def _check_early_end(tx: StateTransaction, failure: Failure) -> FailJob | None:
    """Return the end of the job where a rank of a torch world ends with code 0, too early, for the second time.

    Each incarnation makes steps, so that only a step above the one where it ended last is progress; without steps a
    save is.
    """
    key, step = (failure.role, failure.rank), failure.outcome.step
    last_error = tx.last_errors.get(key)
    tx.last_errors = tx.last_errors.set(key, ErrorMemory("", "", step, failure.outcome.code, tx.now))
    if last_error is None:
        return None
    if step is None and last_error.step is None:
        has_progressed = _has_saved_since(tx, last_error.at)
    else:
        has_progressed = _is_higher_step(step, last_error.step)
    if has_progressed:
        return None
    return FailJob(reasons.USER_ERROR_REPEATS, "it ended so twice, with no progress between")


def _check_hang(tx: StateTransaction, failure: Failure) -> FailJob | None:
    """Return the end of the job where a rank hangs at the same line as at its last failure, with nothing more done.

    A process counts from 0, so that equal numbers of calls and items are no progress; nor are equal steps.
    """
    key, outcome = (failure.role, failure.rank), failure.outcome
    last_error = tx.last_errors.get(key)
    new_error = ErrorMemory("", outcome.frame, outcome.step, at=tx.now, was_ready=True, finished_count=outcome.finished)
    _forget_error(tx, (failure.role, WHOLE_WORLD))
    tx.last_errors = tx.last_errors.set(key, new_error)
    if last_error is None or (last_error.error_type, last_error.frame, last_error.code) != ("", outcome.frame, None):
        return None
    has_done_more = outcome.finished > last_error.finished_count
    if has_done_more or _has_progressed(tx, outcome, last_error.step, last_error.at):
        return None
    return FailJob(reasons.HANG_REPEATS, "it stood at the same line before its restart, with no progress between")


def _forget_error(tx: StateTransaction, key: RankKey) -> None:
    if key in tx.last_errors:
        tx.last_errors = tx.last_errors.delete(key)


def _is_same_end(last_error: ErrorMemory, new_error: ErrorMemory) -> bool:
    """Whether the present end of a rank is the same as its last one, and both are caused by the process itself."""
    if (last_error.error_type, last_error.frame) != (new_error.error_type, new_error.frame):
        return False
    # An exception is known by its type and frame; SystemExit says nothing without its code.
    if new_error.error_type and new_error.error_type != "SystemExit":
        return True
    may_be_outside_kill = not new_error.error_type and new_error.code in _OUTSIDE_KILL_CODES
    return last_error.code == new_error.code and not (
        may_be_outside_kill and (last_error.was_ready or new_error.was_ready)
    )


def _has_progressed(tx: StateTransaction, outcome: Outcome, last_step: int | None, since: float) -> bool:
    """Whether the job made progress since a moment (unix seconds), by a step, by what a rank did, or by a save."""
    has_advanced = outcome.advanced is not None and outcome.advanced > since
    return has_advanced or _is_higher_step(outcome.step, last_step) or _has_saved_since(tx, since)


def _has_saved_since(tx: StateTransaction, since: float) -> bool:
    """Whether any world of the job committed a checkpoint after that moment (unix seconds)."""
    return any(saves.last is not None and saves.last.at > since for saves in tx.saves.values())


def _is_higher_step(step: int | None, last_step: int | None) -> bool:
    return step is not None and (last_step is None or step > last_step)


def is_memory_kill(outcome: Outcome) -> bool:
    """Whether the kernel, the kubelet or Ray's monitor killed the process for its memory."""
    return outcome.reason is Reason.OOM_KILLED and causes.was_killed(outcome)


def _describe_end(outcome: Outcome) -> str:
    """Return the repeated end in words."""
    if outcome.error_type and outcome.error_type != "SystemExit":
        return "the same error at the same place"
    if outcome.code is None:
        return "the same end"
    return f"the same signal {outcome.code - 128}" if outcome.code > 128 else f"the same exit code {outcome.code}"
