"""Repeated failures: one rule for exceptions, exit codes and signals decides that no restart would mend them.

The job ends when a rank (in a torch world: any of its ranks) fails twice in a row in the same way, without progress in
between, and with no other process to blame. A SIGKILL or SIGTERM may come from any process, so it counts only if both
lives ended before they were ready. Three lives in a row that each ended soon after their start are a crash loop,
whatever the signal. A rank of a world that ends with code 0 while others wait for it fails, too, and again at the same
step for good. A rank that hangs at the same line of the user's code twice in a row, with nothing more done than the
first time, would hang there again. Progress is a higher step of any role, a committed checkpoint, or an hour in the
phase Ready.
"""

from __future__ import annotations

from dljob.master.state import causes, early_end, limits, memory_overrides
from dljob.master.state.faults import Failure
from dljob.master.state.state import ErrorMemory, RankKey
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Outcome, Reason
from dljob.telemetry import reasons

CRASH_LOOP_LIVES = 3
"""Consecutive short lives that are a crash loop."""
CRASH_LOOP_S = 30.0
"""Seconds after its start within which a life of a crash loop ends."""
SETTLED_S = 3600.0
"""Seconds after which a ready rank counts as having made progress, whether it reports steps or not."""
_FROM_OUTSIDE = frozenset({None, causes.SIGKILLED, causes.SIGTERMED})
"""Exit codes of a process that may have been ended from outside; None: the exit code is unknown."""
_PEER_REASONS = frozenset(
    {
        *(Reason.NODE_LOST, Reason.NODE_FROZEN, Reason.PREEMPTED, Reason.NETWORK, Reason.IMAGE_PULL),
        *(Reason.DISK, Reason.PORT_TAKEN, Reason.PROCESS_LIMIT),
        *(Reason.DEVICE_ERROR, Reason.HANG, Reason.STRAGGLER, Reason.SILENT_CORRUPTION, Reason.UNHEALTHY),
    }
)
"""Reasons that blame a machine, a peer or a monitor; such an end breaks a row of repetitions."""
_CHILDS = frozenset({Reason.UNKNOWN, Reason.KILLED})
"""Reasons of an exception that only says that another process was lost, such as a child."""
# Errors of dljob and of torch that only say that a peer is gone.
_PEER_ERRORS = frozenset(
    {"CollectiveAbortedError", "DistBackendError", "DistNetworkError", "DistStoreError", "PeerLostError"}
)


def judge(tx: StateTransaction, failure: Failure, *, late: bool = False, lived: bool = True) -> tuple[str, str]:
    """Return (reason, message) to end the job at this failure; empty: the rank may restart. Remembers the failure.

    `late`: the rank was started again before its end was reported. `lived`: it had a process that could end.
    """
    outcome = failure.outcome
    # The host knows that an import or a setup would fail again: no second life is needed to see it.
    if outcome.fatal and outcome.reason in (Reason.USER_ERROR, Reason.IMPORT_ERROR):
        return reasons.USER_ERROR_REPEATS, "it would fail again in the same way"
    if early_end.is_early(outcome):
        return _ended_early_again(tx, failure)
    if failure.secondary or failure.ordered or outcome.error_type in _PEER_ERRORS:
        return "", ""
    if outcome.reason is Reason.HANG and outcome.frame:
        return _hung_again(tx, failure)
    key: RankKey = (failure.role, -1 if tx.facts(failure.role).world else failure.rank)
    last, own = tx.errors.get(key), tx.ranks[failure.role, failure.rank]
    if outcome.reason in _PEER_REASONS or (outcome.reason in _CHILDS and outcome.error_type):
        tx.errors = tx.errors.delete(key) if last else tx.errors
        return "", ""
    began = tx.now - limits.JOIN_S if late else own.since
    if not lived or (began == 0.0 and not late) or (last is not None and began < last.at):
        return "", ""  # it had no process, or of this life an end is already remembered: a life counts once
    ready = late or own.ready_at > 0.0
    progressed = _progressed(tx, last, outcome, began, own.ready_at)
    short = not late and not progressed and tx.now - began <= CRASH_LOOP_S and not _grows(tx, failure)
    short_lives = (last.short_lives if last and short else 0) + short
    # An error of a callee is known by its place there: the caller's line is the same for all of them.
    error = outcome if outcome.origin is None else outcome.origin
    memory = ErrorMemory(error.error_type, error.frame, outcome.step, outcome.code, tx.now, ready, short_lives)
    tx.errors = tx.errors.set(key, memory)
    if last is not None and not progressed and _same(last, memory) and not _kernels(outcome):
        return (
            reasons.USER_ERROR_REPEATS,
            f"{_describe_end(outcome)} twice, with no progress between{_proviso(outcome)}",
        )
    if short_lives >= CRASH_LOOP_LIVES:
        words = f"{short_lives} lives in a row ended within {CRASH_LOOP_S:.0f} s of their start, with no progress"
        return reasons.CRASH_LOOP, f"a crash loop: {words}"
    return "", ""


def _ended_early_again(tx: StateTransaction, failure: Failure) -> tuple[str, str]:
    """Return the end of the job where a rank of a torch world ends with code 0, too early, for the second time.

    Each life makes steps, so that only a step above the one where it ended last is progress; without steps a save is.
    """
    key, step = (failure.role, failure.rank), failure.outcome.step
    last = tx.errors.get(key)
    tx.errors = tx.errors.set(key, ErrorMemory("", "", step, failure.outcome.code, tx.now))
    if last is None:
        return "", ""
    if step is None and last.step is None:
        went_further = any(saves.last is not None and saves.last.at > last.at for saves in tx.saves.values())
    else:
        went_further = step is not None and (last.step is None or step > last.step)
    if went_further:
        return "", ""
    return reasons.USER_ERROR_REPEATS, "it ended so twice, with no progress between"


def _hung_again(tx: StateTransaction, failure: Failure) -> tuple[str, str]:
    """Return the end of the job where a rank hangs at the same line as at its last failure, with nothing more done.

    A process counts from 0, so that equal numbers of calls and items are no progress; nor are equal steps.
    """
    key, outcome = (failure.role, failure.rank), failure.outcome
    last = tx.errors.get(key)
    memory = ErrorMemory("", outcome.frame, outcome.step, at=tx.now, ready=True, finished=outcome.finished)
    tx.errors = tx.errors.delete((failure.role, -1)) if (failure.role, -1) in tx.errors else tx.errors
    tx.errors = tx.errors.set(key, memory)
    if last is None or (last.error_type, last.frame, last.code) != ("", outcome.frame, None):
        return "", ""
    went_further = (
        (outcome.step is not None and (last.step is None or outcome.step > last.step))
        or (outcome.advanced is not None and outcome.advanced > last.at)
        or outcome.finished > last.finished
        or any(saves.last is not None and saves.last.at > last.at for saves in tx.saves.values())
    )
    if went_further:
        return "", ""
    return reasons.HANG_REPEATS, "it stood at the same line before its restart, with no progress between"


def _same(last: ErrorMemory, new: ErrorMemory) -> bool:
    """Whether two ends are the same and caused by the process itself."""
    if (last.error_type, last.frame) != (new.error_type, new.frame):
        return False
    # An exception is known by its type and frame; SystemExit says nothing without its code.
    if new.error_type and new.error_type != "SystemExit":
        return True
    sent = not new.error_type and new.code in _FROM_OUTSIDE
    return last.code == new.code and not (sent and (last.ready or new.ready))


def _progressed(
    tx: StateTransaction, last: ErrorMemory | None, outcome: Outcome, began: float, ready_at: float
) -> bool:
    """Whether the job made progress since the last remembered end; at the first end, since the life began."""
    since = began if last is None else last.at
    before = None if last is None else last.step
    return (
        (outcome.step is not None and (before is None or outcome.step > before))
        or (outcome.advanced is not None and outcome.advanced > since)
        or (ready_at > 0.0 and tx.now - ready_at >= SETTLED_S)
        or any(saves.last is not None and saves.last.at > since for saves in tx.saves.values())
    )


def _grows(tx: StateTransaction, failure: Failure) -> bool:
    """Whether the next life gets more memory (`outOfMemory`), so that it is no repetition."""
    return _kernels(failure.outcome) and memory_overrides.policy_of(tx.job, failure.role) is not None


def _kernels(outcome: Outcome) -> bool:
    """Whether the kernel, the kubelet or Ray's monitor killed the process for its memory."""
    return outcome.reason is Reason.OOM_KILLED and causes.killed(outcome)


def _describe_end(outcome: Outcome) -> str:
    """Return the repeated end in words."""
    if outcome.error_type and outcome.error_type != "SystemExit":
        return "the same error at the same place"
    if outcome.code is None:
        return "the same end"
    return f"the same signal {outcome.code - 128}" if outcome.code > 128 else f"the same exit code {outcome.code}"


def _proviso(outcome: Outcome) -> str:
    sent = not outcome.error_type and outcome.code in _FROM_OUTSIDE
    return ", both before it was ready" if sent else ""
