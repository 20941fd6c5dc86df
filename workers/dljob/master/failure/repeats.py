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

from dljob.master.state import causes, early_end, limits, memory_overrides
from dljob.master.state.faults import Failure
from dljob.master.state.state import ErrorMemory, RankKey
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
_OUTSIDE_KINDS = frozenset({CauseKind.NODE, CauseKind.DEVICE, CauseKind.STOPPED})
_PEER_REASONS = frozenset(
    {
        *(reason for reason in Reason if FAULTS[reason].kind in _OUTSIDE_KINDS),
        *(Reason.IMAGE_PULL, Reason.HANG, Reason.STRAGGLER, Reason.UNHEALTHY),
    }
)
"""Reasons that blame a machine, a peer or a monitor; such an end breaks a row of repetitions."""
_CHILD_REASONS = frozenset({Reason.UNKNOWN, Reason.KILLED})
"""Reasons of an exception that only says that another process was lost, such as a child."""
# Errors of dljob and of torch that only say that a peer is gone.
_PEER_ERRORS = frozenset(
    {"CollectiveAbortedError", "DistBackendError", "DistNetworkError", "DistStoreError", "PeerLostError"}
)


def check_repetition(
    tx: StateTransaction, failure: Failure, *, is_late: bool = False, had_process: bool = True
) -> tuple[str, str]:
    """Return (reason, message) to end the job at this failure; empty: the rank may restart. Remembers the failure.

    `is_late`: the rank was started again before its end was reported. `had_process`: it had a process that could end.
    """
    outcome = failure.outcome
    # The host knows that an import or a setup would fail again: no second incarnation is needed to see it.
    if outcome.fatal and outcome.reason in (Reason.USER_ERROR, Reason.IMPORT_ERROR):
        return reasons.USER_ERROR_REPEATS, "it would fail again in the same way"
    if early_end.is_early_end(outcome):
        return _check_early_end(tx, failure)
    if failure.secondary or failure.ended_by_master or outcome.error_type in _PEER_ERRORS:
        return "", ""
    if outcome.reason is Reason.HANG and outcome.frame:
        return _check_hang(tx, failure)
    key: RankKey = (failure.role, -1 if tx.facts(failure.role).is_torch_world else failure.rank)
    last_error, rank_state = tx.errors.get(key), tx.ranks[failure.role, failure.rank]
    if outcome.reason in _PEER_REASONS or (outcome.reason in _CHILD_REASONS and outcome.error_type):
        tx.errors = tx.errors.delete(key) if last_error else tx.errors
        return "", ""
    began_at = tx.now - limits.SAME_FAILURE_S if is_late else rank_state.process_ordered_at
    if not had_process or (began_at == 0.0 and not is_late) or (last_error is not None and began_at < last_error.at):
        return "", ""  # it had no process, or an end of this process is already remembered
    was_ready = is_late or rank_state.ready_at > 0.0
    # At the first end, progress counts since the process began.
    last_step, since = (None, began_at) if last_error is None else (last_error.step, last_error.at)
    is_settled = rank_state.ready_at > 0.0 and tx.now - rank_state.ready_at >= SETTLED_S
    has_progressed = is_settled or _has_progressed(tx, outcome, last_step, since)
    # The next process of a rank that gets more memory (`outOfMemory`) does not repeat this one.
    gets_memory = is_memory_kill(outcome) and memory_overrides.policy_of(tx.job, failure.role) is not None
    is_short = not (is_late or has_progressed or gets_memory) and tx.now - began_at <= CRASH_LOOP_S
    short_incarnations = (last_error.short_incarnations if last_error and is_short else 0) + is_short
    # An error of a callee is known by its place there: the caller's line is the same for all of them.
    origin = outcome if outcome.origin is None else outcome.origin
    new_error = ErrorMemory(
        origin.error_type, origin.frame, outcome.step, outcome.code, tx.now, was_ready, short_incarnations
    )
    tx.errors = tx.errors.set(key, new_error)
    can_repeat = not has_progressed and not is_memory_kill(outcome)
    if last_error is not None and can_repeat and _is_same_end(last_error, new_error):
        is_signal = not outcome.error_type and outcome.code in _OUTSIDE_KILL_CODES
        proviso = ", both before it was ready" if is_signal else ""
        return reasons.USER_ERROR_REPEATS, f"{_describe_end(outcome)} twice, with no progress between{proviso}"
    if short_incarnations >= CRASH_LOOP_INCARNATIONS:
        explanation = f"{short_incarnations} incarnations in a row ended within {CRASH_LOOP_S:.0f} s of their start"
        return reasons.CRASH_LOOP, f"a crash loop: {explanation}, with no progress"
    return "", ""


def _check_early_end(tx: StateTransaction, failure: Failure) -> tuple[str, str]:
    """Return the end of the job where a rank of a torch world ends with code 0, too early, for the second time.

    Each incarnation makes steps, so that only a step above the one where it ended last is progress; without steps a
    save is.
    """
    key, step = (failure.role, failure.rank), failure.outcome.step
    last_error = tx.errors.get(key)
    tx.errors = tx.errors.set(key, ErrorMemory("", "", step, failure.outcome.code, tx.now))
    if last_error is None:
        return "", ""
    if step is None and last_error.step is None:
        has_progressed = _has_saved_since(tx, last_error.at)
    else:
        has_progressed = _is_higher_step(step, last_error.step)
    if has_progressed:
        return "", ""
    return reasons.USER_ERROR_REPEATS, "it ended so twice, with no progress between"


def _check_hang(tx: StateTransaction, failure: Failure) -> tuple[str, str]:
    """Return the end of the job where a rank hangs at the same line as at its last failure, with nothing more done.

    A process counts from 0, so that equal numbers of calls and items are no progress; nor are equal steps.
    """
    key, outcome = (failure.role, failure.rank), failure.outcome
    last_error = tx.errors.get(key)
    new_error = ErrorMemory("", outcome.frame, outcome.step, at=tx.now, ready=True, finished=outcome.finished)
    tx.errors = tx.errors.delete((failure.role, -1)) if (failure.role, -1) in tx.errors else tx.errors
    tx.errors = tx.errors.set(key, new_error)
    if last_error is None or (last_error.error_type, last_error.frame, last_error.code) != ("", outcome.frame, None):
        return "", ""
    has_done_more = outcome.finished > last_error.finished
    if has_done_more or _has_progressed(tx, outcome, last_error.step, last_error.at):
        return "", ""
    return reasons.HANG_REPEATS, "it stood at the same line before its restart, with no progress between"


def _is_same_end(last_error: ErrorMemory, new_error: ErrorMemory) -> bool:
    """Whether two ends are the same and caused by the process itself."""
    if (last_error.error_type, last_error.frame) != (new_error.error_type, new_error.frame):
        return False
    # An exception is known by its type and frame; SystemExit says nothing without its code.
    if new_error.error_type and new_error.error_type != "SystemExit":
        return True
    is_signal = not new_error.error_type and new_error.code in _OUTSIDE_KILL_CODES
    return last_error.code == new_error.code and not (is_signal and (last_error.ready or new_error.ready))


def _has_progressed(tx: StateTransaction, outcome: Outcome, last_step: int | None, since: float) -> bool:
    """Whether the job made progress since a moment (unix seconds), by a step, by what a rank did, or by a save."""
    has_advanced = outcome.advanced is not None and outcome.advanced > since
    return has_advanced or _is_higher_step(outcome.step, last_step) or _has_saved_since(tx, since)


def _has_saved_since(tx: StateTransaction, since: float) -> bool:
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
