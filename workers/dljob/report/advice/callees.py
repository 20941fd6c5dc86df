"""Advice on the number of ranks of a role that others call, such as rollouts: who waits for whom. No I/O.

The prediction is the utilization law of operational analysis (P. J. Denning and J. P. Buzen, The Operational Analysis
of Queueing Network Models, ACM Computing Surveys 10(3), 1978): the work that a caller asks for in all does not depend
on the number of ranks, so that each of n ranks is busy for `work / n`. The caller waits as much less as a rank is busy
less; what it waits beyond that, such as for one long call, stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import stdev
from typing import Any, NamedTuple

from dljob.report.advice.job_use import JobUse
from dljob.report.advice.proposals import LEAST, LEAST_POINTS, Advice, Gain, Proposal
from dljob.report.advice.values import rows
from dljob.telemetry.wording import counted, seconds

LEAST_S = 300.0
"""Productive seconds of the caller, in all runs together, from which its waits are known."""
WINDOWS = 10
"""Parts of the runs' time between which waits may differ."""
WAITS = 0.05
"""Share of the caller's time that it waits, from which more ranks are tried; and less of which is aimed at."""
BUSY = 0.5
"""Share of the caller's waits for which a rank is busy, under which more ranks would only share out their idleness."""
FACTOR = 2
"""Most that a role is grown by at once: records do not reach further."""
FEWER = 0.01
"""Most points of the caller's time that fewer ranks may cost."""


class Waits(NamedTuple):
    """Shares of a caller's time: what it waits, and for which a rank that it calls is busy, on average and at most."""

    waited: float
    busy: float
    busiest: float
    off: float
    """Twice the deviation of the mean of `waited`."""

    def at_work(self, factor: float) -> float:
        """Return the share of its time for which the caller would work with so many times the ranks."""
        own = 1 - self.waited
        return own / (own + max(0.0, self.waited - self.busy * (1 - 1 / factor)))


def advise(uses: Sequence[JobUse]) -> Advice:
    """Return advice on the number of ranks of each role that others call."""
    found, newest = Advice(), uses[-1]
    for role in rows(newest.spec.get("roles")):
        name = str(role.get("name"))
        callers = {caller for use in uses for caller, callee in use.calls if callee == name}
        if callers and name in newest.roles:
            found += _role(name, role, callers, uses)
    return found


def _fixed(role: Mapping[str, Any]) -> str:
    """Return why a role's number of ranks is no matter of waits; empty where it is."""
    if role.get("type") == "Elastic":
        return "its ranks train together: their number is part of what is trained"
    if role.get("replicasPerGroup", 1) != 1:
        return "its ranks form groups, each of which works as one"
    if role.get("autoscale") or "maxReplicas" in role:
        return "it grows and shrinks while the job runs"
    return ""


def _role(name: str, role: Mapping[str, Any], callers: set[str], uses: Sequence[JobUse]) -> Advice:
    what = f"roles.{name}.replicas"
    if why := _fixed(role):
        return Advice.no(what, why)
    by_caller = {caller: [use.calls[caller, name] for use in uses if (caller, name) in use.calls] for caller in callers}
    # The caller that loses most.
    caller, own = max(by_caller.items(), key=lambda item: sum(one.waited_s for one in item[1]))
    time = sum(one.seconds for one in own)
    if time < LEAST_S:
        return Advice.no(what, f"too little history: {caller} ran for {seconds(time)}, wanted are {seconds(LEAST_S)}")
    windows = [share for one in own for share in one.windows]
    if len(windows) < WINDOWS:
        return Advice.no(what, f"too little history: {counted(len(windows), 'sample')} of waits, wanted are {WINDOWS}")
    served = [one.served_s for one in own if one.served_s]
    if not served:
        return Advice.no(what, f"no time of calls in {name} was recorded")
    mean = sum(sum(ranks) / len(ranks) for ranks in served) / time
    found = Waits(
        min(0.99, sum(one.waited_s for one in own) / time),
        min(1.0, mean),
        min(1.0, sum(max(ranks) for ranks in served) / time),
        2 * stdev(windows) / math.sqrt(len(windows)),
    )
    return _number(what, caller, int(max(1, uses[-1].roles[name].ranks)), found)


def _number(what: str, caller: str, ranks: int, found: Waits) -> Advice:
    told = (
        f"{caller} waits for it {found.waited:.0%} of its time, +/- {100 * found.off:.1f}, and a rank is busy "
        f"{found.busy:.0%} of that time"
    )
    if found.waited < WAITS:
        return _fewer(what, told, caller, ranks, found)
    if found.busy < BUSY * found.waited:
        return Advice.no(what, f"{told}: most of the wait is not for a rank that works, so more do not shorten it")
    now = 1 - found.waited
    wanted = next(
        (n for n in range(ranks + 1, FACTOR * ranks) if 1 - found.at_work(n / ranks) <= WAITS), FACTOR * ranks
    )
    gain = found.at_work(wanted / ranks) - now
    # The wait ends with the rank that is busy longest, and that rank may have what cannot be shared out.
    skew = found._replace(busy=max(0.0, 2 * found.busy - found.busiest)).at_work(wanted / ranks)
    unsure = found.off + now + gain - skew
    if gain < max(LEAST_POINTS, unsure):
        points = f"{100 * gain:.1f} points of its time, +/- {100 * unsure:.1f}"
        return Advice.no(what, f"{told}: {wanted} instead of {ranks} would bring {points}")
    why = f"{told}; with {wanted} it would work {now + gain:.0%} of its time instead of {now:.0%}"
    return _proposal(what, (ranks, wanted), why, Gain("work", gain, unsure))


def _fewer(what: str, told: str, caller: str, ranks: int, found: Waits) -> Advice:
    """Propose the fewest ranks that cost the caller less than a point: all that they work more is waited for."""
    now = found.at_work(1)
    wanted = next((n for n in range(1, ranks) if now - found.at_work(n / ranks) <= FEWER), ranks)
    share = 1 - wanted / ranks
    if share < LEAST:
        return Advice.no(what, f"{ranks} fit: {told}")
    cost = 100 * max(0.0, now - found.at_work(wanted / ranks))
    why = f"{told}; with {wanted} {caller} would wait {cost:.1f} points more at most"
    return _proposal(what, (ranks, wanted), why, Gain("ranks", share, found.off))


def _proposal(what: str, change: tuple[int, int], why: str, gain: Gain) -> Advice:
    now, wanted = change
    return Advice((Proposal(tuple(what.split(".")), what, str(now), str(wanted), wanted, why, gain),))
