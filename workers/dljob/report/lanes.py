"""Lanes of a page: the account of each rank over time, small enough to be drawn. No I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from operator import attrgetter

from dljob.report.history import DETECT, JobHistory, RankKey, Stretch
from dljob.telemetry.job_samples import ACCOUNTS

MOST = 120_000
"""Stretches of all lanes together, some 2 MB; beyond them short ones are drawn as a part of their neighbours."""
_GRAINS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
"""Widths in seconds within which the longest stretch stands for all."""

_ATS = attrgetter("at")
_INDEX = {account: index for index, account in enumerate(ACCOUNTS)}


def lanes(history: JobHistory, unrecorded: list[str]) -> dict[str, list[list[float]]]:
    """Return role -> by rank a flat list [start, account, ...]; -1 is the account of a rank that is dropped."""
    drawn, grain = history.lanes, 0
    for grain in (0, *_GRAINS):
        drawn = {key: thinned(lane, grain * 10**6) for key, lane in history.lanes.items()} if grain else drawn
        if sum(map(len, drawn.values())) <= MOST:
            break
    if grain:
        unrecorded.append(f"lanes: of each {grain} s the longest account is drawn; dljob replay tells all of them")
    roles: dict[str, list[list[float]]] = {}
    for (role, rank), lane in drawn.items():
        rows = roles.setdefault(role, [])
        rows.extend([] for _ in range(rank + 1 - len(rows)))
        rows[rank] = flat(history, lane)
    return roles


def thinned(lane: list[Stretch], grain: int) -> list[Stretch]:
    """Return a lane in which each window of `grain` microseconds has one account, the one with most time in it."""
    thin: list[Stretch] = []
    window, spent = -1, dict[str, int]()
    for stretch, after in pairwise([*lane, Stretch(lane[-1].at + grain, "")]):
        # A long stretch fills the windows between its ends without a change.
        for number in sorted({stretch.at // grain, after.at // grain}):
            begin = number * grain
            if number != window:
                _keep(thin, window * grain, spent)
                window, spent = number, {}
            part = min(after.at, begin + grain) - max(stretch.at, begin)
            spent[stretch.account] = spent.get(stretch.account, 0) + max(part, 0)
        # The windows that the stretch covers alone.
        if after.at // grain > stretch.at // grain + 1:
            _keep(thin, (stretch.at // grain + 1) * grain, {stretch.account: grain})
    _keep(thin, window * grain, spent)
    return thin


def _keep(thin: list[Stretch], at: int, spent: dict[str, int]) -> None:
    if not spent:
        return
    account = max(spent, key=lambda name: spent[name])
    if not thin or thin[-1].account != account:
        thin.append(Stretch(at, account))


def flat(history: JobHistory, lane: Iterable[Stretch]) -> list[float]:
    """Return stretches as [start, account, ...], in unix seconds and indices of accounts."""
    return [value for stretch in lane for value in (history.seconds(stretch.at), _INDEX.get(stretch.account, -1))]


def spent(history: JobHistory, key: RankKey, begin: float, end: float) -> dict[str, float]:
    """Return account -> seconds of a rank between two times (unix seconds)."""
    seconds: dict[str, float] = {}
    first, last = (_micros(history, at) for at in (begin, end))
    lane, at = history.lanes.get(key, []), _place(history, key, first)
    for stretch, after in pairwise([*lane[at:], Stretch(last, "")]):
        part = min(after.at, last) - max(stretch.at, first)
        if part <= 0:
            break
        seconds[stretch.account] = seconds.get(stretch.account, 0.0) + part / 1e6
    return seconds


def next_in(history: JobHistory, key: RankKey, account: str, begin: float, end: float) -> float:
    """Return when a rank is in an account at or after `begin` (unix seconds); `end` if it never is again."""
    lane, at = history.lanes.get(key, []), _place(history, key, _micros(history, begin))
    for stretch in lane[at:]:
        if stretch.account == account:
            return max(begin, history.started + stretch.at / 1e6)
    return end


def detected(history: JobHistory, key: RankKey, at: float) -> float:
    """Return the seconds between the last sign of life and a loss that was reported at a time (unix seconds)."""
    reported = _micros(history, at)
    lane, place = history.lanes.get(key, []), _place(history, key, reported)
    # The report begins a stretch, so the time before it is the stretch before that one.
    is_detection = place > 0 and lane[place - 1].account == DETECT and abs(lane[place].at - reported) <= 1000
    return (lane[place].at - lane[place - 1].at) / 1e6 if is_detection else 0.0


def _micros(history: JobHistory, at: float) -> int:
    return round((at - history.started) * 1e6)


def _place(history: JobHistory, key: RankKey, at: int) -> int:
    """Return the index of the stretch that a time, to the millisecond, lies in."""
    return max(0, bisect_right(history.lanes.get(key, []), at + 1000, key=_ATS) - 1)
