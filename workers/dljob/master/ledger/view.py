"""The ledger in the status snapshot, in seconds and shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dljob.master.ledger.rules import micros
from dljob.master.state.ledger import Account, Goodput, counter_shortfalls, goodput, rank_time, totals
from dljob.master.state.state import JobState


def shown(state: JobState, now: float) -> dict[str, Any]:
    """Return wall time, processes, goodput, and the accounts of the job and each role, in process-seconds.

    Empty accounts are left out. `owed` is the amount that a metric counter adds to an account so that it never falls.
    """
    at = _until(state, now)
    rows: list[dict[str, Any]] = []
    # The job's accounts are summed up here, so that they are the sum of the roles' at every reading.
    job_totals = dict.fromkeys(Account, 0)
    for role in state.job.roles:
        role_totals = totals(state.ledger, role, at)
        for account, total in role_totals.items():
            job_totals[account] += total
        row = {"name": role, "accounts": _seconds(role_totals)}
        lacking = counter_shortfalls(state.ledger, role, at)
        rows.append({**row, "owed": _seconds(lacking)} if lacking else row)
    share = _goodput(state, at)
    return {
        "seconds": at / 1e6,
        "processes": _ranks(state),
        "goodput": _rounded(share.overall),
        "recentGoodput": _rounded(share.recent),
        "accounts": _seconds({account: total for account, total in job_totals.items() if total}),
        "roles": rows,
    }


def permille(state: JobState, now: float) -> int | None:
    """Return the job's goodput in thousandths; None before any time has passed."""
    share = _goodput(state, _until(state, now)).overall
    return None if share is None else int(share * 1000)


def _ranks(state: JobState) -> int:
    """Return the present number of ranks of all roles."""
    return len(state.ranks) - sum(role.absent_count for role in state.roles.values())


def _goodput(state: JobState, at: int) -> Goodput:
    spent = (rank_time(state.ledger, name, facts.plan.replicas, at) for name, facts in state.job.roles.items())
    return goodput(state.ledger, _ranks(state), at, sum(spent))


def _until(state: JobState, now: float) -> int:
    """Return now, or the job's end if it is over, in ledger time (microseconds); never before the last booking."""
    at = now if state.ended_at is None else state.ended_at
    return max(state.ledger.at, micros(state, at))


def _seconds(accounts: Mapping[Account, int]) -> dict[str, float]:
    return {account.value: total / 1e6 for account, total in accounts.items()}


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)
