"""Whether the weights of a rank keep it from requests: a function of what it holds and of the newest version."""

from __future__ import annotations

from dljob.master.state.state import JobState, RankKey
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.weight_versions import PublishedWeights, RankWeights
from dljob.plan.serving import WeightsPlan

_NONE = RankWeights()


def why_stale(plan: WeightsPlan, newest: PublishedWeights | None, own: RankWeights | None) -> str:
    """Return why a rank with these weights is stale; empty: it is not."""
    own = own or _NONE
    if newest is None:  # nothing was published that it could lack, but what it holds may have been left
        return "" if own.at else own.why
    if not own.at:
        return own.why or f"it holds no version, and the newest is {newest.version}"
    if own.at < newest.since and own.version > newest.first:
        return f"it holds version {own.version} of a series that was given up; the newest is {newest.version}"
    lag = newest.version - own.version
    if lag <= plan.max_lag:
        return ""
    return f"it holds version {own.version}, {lag} behind; maxLag is {plan.max_lag}{_describe_failure(own)}"


def _describe_failure(weights: RankWeights) -> str:
    return f"; its last load failed: {weights.why}" if weights.failures else ""


def why_out(s: JobState | StateTransaction, key: RankKey) -> str:
    """Return why the weights of a rank keep it from requests; empty: they do not."""
    plan, newest = s.job.roles[key[0]].plan.weights, s.roles[key[0]].newest
    if plan is None:
        return ""
    own = s.ranks[key].weights or _NONE
    if own.loading is not None:
        return f"it loads version {own.loading.version}{_describe_failure(own)}"
    return why_stale(plan, newest, own)
