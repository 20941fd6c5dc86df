"""Versions of the weights of servers: the published ones, and what a rank holds and loads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    """The newest version that all channels of a role have. Times are those of its last channel (unix seconds)."""

    version: int
    at: float
    since: float = 0.0
    """When the present series of versions began: a publisher that restarts may go back to an earlier number."""
    first: int = 0
    """The number with which that series began."""


@dataclass(frozen=True, slots=True)
class RankWeights:
    """The weights that a process holds, and the load that is ordered. Times are unix seconds."""

    version: int = 0
    at: float = 0.0
    """When the version that it holds was published; 0: it holds none."""
    loading: PublishedWeights | None = None
    """The version that it was ordered to load and has not answered for; None: none."""
    failures: int = 0
    """Number of loads in a row that failed."""
    retry_at: float | None = None
    """When a failed load is ordered again."""
    problem: str = ""
    """Why the last load failed, or what it holds was left; empty: neither."""
    left_reason: str = ""
    """Why the version that it is loading was left meanwhile; empty: it was not."""
