"""Whether the weights of a rank keep it from requests: a function of what it holds and of the newest version."""

from __future__ import annotations

from dljob.master.state.state import JobState, RankKey
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.weight_versions import PublishedWeights, RankWeights
from dljob.plan.serving import WeightsPlan

_NONE = RankWeights()


def stale_reason(plan: WeightsPlan, newest: PublishedWeights | None, weights: RankWeights | None) -> str:
    """Return why a rank with these weights is stale; empty: it is not."""
    weights = weights or _NONE
    if newest is None:  # nothing was published that it could lack, but what it holds may have been left
        return "" if weights.at else weights.problem
    if not weights.at:
        return weights.problem or f"it holds no version, and the newest is {newest.version}"
    if weights.at < newest.since and weights.version > newest.first:
        return f"it holds version {weights.version} of a series that was given up; the newest is {newest.version}"
    lag = newest.version - weights.version
    if lag <= plan.max_lag:
        return ""
    return f"it holds version {weights.version}, {lag} behind; maxLag is {plan.max_lag}{_describe_failure(weights)}"


def _describe_failure(weights: RankWeights) -> str:
    return f"; its last load failed: {weights.problem}" if weights.failures else ""


def no_requests_reason(state: JobState | StateTransaction, key: RankKey) -> str:
    """Return why the weights of a rank keep it from requests; empty: they do not."""
    plan, newest = state.job.roles[key[0]].plan.weights, state.roles[key[0]].newest
    if plan is None:
        return ""
    weights = state.ranks[key].weights or _NONE
    if weights.loading is not None:
        return f"it loads version {weights.loading.version}{_describe_failure(weights)}"
    return stale_reason(plan, newest, weights)
