"""Ranks of a torch world that ended with code 0 while others of the world wait for them in a collective."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dljob.master.state import hang, limits
from dljob.master.state.hang import HangFinding, Pace, SamplePair, Where
from dljob.master.state.state import RankState
from dljob.master.state.views import Outcome, Reason

if TYPE_CHECKING:
    from dljob.spec.policy import HangPolicy

NAMED_RANKS = 3
"""Most waiting ranks that a message names."""
_TORCH_CALL = re.compile(r"torch/distributed/[^\n]*?, line \d+, in (\w+)")
"""A frame of `torch.distributed` in a traceback, and its function."""
WRAPPERS = frozenset({"wrapper", "_wrapped"})
"""Functions of torch that stand between a collective and its caller."""


def describe_early_end(role: str, step: int | None, waiting_ranks: Sequence[int], call: str) -> str:
    """Return an early end in words: "ended with code 0 at step 8; worker/0 and 2 wait for it in all_reduce: ...".

    Args:
        role: The role of all ranks.
        step: The last step that the ended rank reported; None: it reported none.
        waiting_ranks: The ranks that wait for it, at least one.
        call: The collective in which they wait; empty: it is unknown.
    """
    step_text = "" if step is None else f" at step {step}"
    call_text = f" in {call}" if call else ""
    verb = "waits" if len(waiting_ranks) == 1 else "wait"
    return f"ended with code 0{step_text}; {ranks_in_words(role, waiting_ranks)} {verb} for it{call_text}: uneven data?"


def ranks_in_words(role: str, ranks: Sequence[int]) -> str:
    """Return the names of one or more ranks of a role: "worker/0, 2 and 5 more"."""
    names = [f"{role}/{ranks[0]}", *map(str, ranks[1:NAMED_RANKS])]
    if len(ranks) > NAMED_RANKS:
        return f"{', '.join(names)} and {len(ranks) - NAMED_RANKS} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def collective_in_traceback(traceback: str) -> str:
    """Return the function of `torch.distributed` that user code had called, by a traceback; empty: there is none."""
    return next((name for name in _TORCH_CALL.findall(traceback) if name not in WRAPPERS), "")


def has_worked_on_after_end_of(ended_rank: RankState, outcome: Outcome) -> bool:
    """Whether a rank that failed later had gone on without an ended one, so that it did not wait for that one.

    One step more is none: a rank reports a step, and then waits in the next one.
    """
    is_further = outcome.step is not None and ended_rank.end_step is not None and outcome.step > ended_rank.end_step + 1
    return (
        is_further
        and outcome.advanced is not None
        and outcome.advanced > ended_rank.ended_at + limits.SAME_FAILURE_WINDOW_S
    )


def outcome_of_early_end(message: str, step: int | None) -> Outcome:
    """Return the end of a rank that ended well too early as a failure. It alone has the exit code 0."""
    return Outcome(ok=False, reason=Reason.USER_ERROR, code=0, message=message, step=step)


def is_own_early_end(outcome: Outcome) -> bool:
    """Whether a failure is that of `outcome_of_early_end`."""
    return outcome.code == 0 and not outcome.ok


# -- where no connection closes, and nobody fails: a wait in a store, or for a device


@dataclass(frozen=True, slots=True)
class EndedRank:
    """A rank of a world that ended with code 0 while others of the world live."""

    step: int | None
    """Last step that it reported; None: it reported none."""
    at: float
    """When it ended, or was first seen to have ended, on the clock of the paces."""


def must_look(ended_ranks: Mapping[int, EndedRank], paces: Mapping[int, Pace], now: float, policy: HangPolicy) -> bool:
    """Whether the rest of a world is to be looked at: no step since a rank ended, for as long as idle ranks may wait.

    That end counts like a step, so a wait for it is found in roles that report no steps, too.
    """
    if not ended_ranks:
        return False
    last_at = max((*(pace.at for pace in paces.values()), *(rank.at for rank in ended_ranks.values())))
    bounds = (hang.idle_after(pace, policy) for pace in paces.values() if pace.measured)
    return now - last_at > max((float(policy.idle_seconds), *bounds))


def find_wait(
    role: str, ended_ranks: Mapping[int, EndedRank], paces: Mapping[int, Pace], looks: Mapping[int, SamplePair]
) -> HangFinding | None:
    """Return the finding that a world waits in a collective for a rank that has ended; None: it does not, or may not.

    A living rank that works elsewhere may still come: as long as one does, nobody is blamed.

    Args:
        role: The role.
        ended_ranks: Its ranks that have ended with code 0, at least one.
        paces: Rank -> pace, for living ranks that ever reported a step.
        looks: Living rank -> observations, after a silence of which `must_look` says that it is too long.
    """
    waiting_ranks = [rank for rank, sample in sorted(looks.items()) if sample.activity is Where.COLLECTIVE]
    other_samples = [sample for sample in looks.values() if sample.activity is not Where.COLLECTIVE]
    # Ranks that wait for an asynchronous collective look idle in user code.
    if not waiting_ranks or any(sample.activity is not Where.USER or sample.works for sample in other_samples):
        return None
    first_rank = min(ended_ranks, key=lambda rank: ended_ranks[rank].at)
    step = ended_ranks[first_rank].step
    late_at = ended_ranks[first_rank].at + limits.SAME_FAILURE_WINDOW_S
    if step is not None and any(pace.step > step + 1 and pace.at > late_at for pace in paces.values()):
        return None  # they went on without it
    return HangFinding(first_rank, describe_early_end(role, step, waiting_ranks, looks[waiting_ranks[0]].second.call))
