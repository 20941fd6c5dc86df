"""The ledger: the account that each rank's time went to, in whole microseconds since the job's start.

A rank is in exactly one account at any time, and leaves it only for another one. So the accounts add up to the time
multiplied by the number of ranks, exactly. The ledger's own time never goes back, whatever the clock does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from immutables import Map

from dljob.master.state.evolve import evolve

RankKey: TypeAlias = tuple[str, int]
Clock: TypeAlias = "tuple[Account, int]"
"""The account that a rank is in, and since when (microseconds)."""

WINDOW_US = 600 * 10**6
"""Length of the window of the recent goodput."""
GRAIN_US = 30 * 10**6
"""Least distance of two marks in that window, which bounds their number at the price of precision."""
MOST_RESIZES = 128
"""Most changes of the number of ranks that are kept of that window: a fleet with a short cooldown may breathe more."""


class Account(StrEnum):
    """An account of rank time. docs/ledger.md says from which event to which it runs."""

    QUEUE = "queue"
    """The job waits for room."""
    SCHEDULE = "schedule"
    """A reservation is awaited: at admission, or for a unit that lost its node."""
    INIT = "init"
    """The first process of the rank starts, or a restarted rank has not reported a step yet."""
    PRODUCTIVE = "productive"
    """The rank does work that was not done before."""
    DETECT = "detect"
    """From the last sign of life of a lost rank to the event that reports the loss."""
    DECIDE = "decide"
    """The rank waits out the backoff of its restart."""
    REPLACE = "replace"
    """A process is being ended, or a new one is being created in place of a lost one."""
    RENDEZVOUS = "rendezvous"
    """The rank is up and waits for the other ranks of its torch world."""
    RECOMPUTE = "recompute"
    """A restarted rank repeats steps that an earlier process had done."""
    STALE = "stale"
    """A ready rank gets no requests, as it loads weights or lags too far behind the newest."""
    WAIT = "wait"
    """The rank waits for another role (`dependsOn`)."""
    IDLE = "idle"
    """The rank has ended, or the job is ending."""
    SPARE = "spare"
    """Time of process spares, which are no ranks: it comes on top of the ranks' time."""


BookKey: TypeAlias = tuple[str, Account]
"""(role, account)."""


@dataclass(frozen=True, slots=True)
class RoleAccount:
    """An account of a role: its total at `at`, and the number of processes that add to it since then."""

    total: int = 0
    count: int = 0
    at: int = 0

    def upto(self, at: int) -> int:
        """Return the account's total at a time, which must not be before its own."""
        return self.total + self.count * (at - self.at)


_NOTHING = RoleAccount()


@dataclass(frozen=True, slots=True)
class Ledger:
    """All accounts of a job. `at` is the time of the last booking."""

    at: int = 0
    clocks: Map[RankKey, Clock] = field(default_factory=Map[RankKey, Clock])
    """Rank -> its present account, and since when."""
    books: Map[BookKey, RoleAccount] = field(default_factory=Map[BookKey, RoleAccount])
    """(role, account) -> its total and the number of ranks in it."""
    floors: Map[BookKey, int] = field(default_factory=Map[BookKey, int])
    """(role, account) -> its total when time was moved out of it: a metric counter must not show less."""
    ranks: Map[str, RoleAccount] = field(default_factory=Map[str, RoleAccount])
    """Role -> the time of all its ranks, for roles whose number of ranks has changed."""
    productive: RoleAccount = RoleAccount()
    """The productive account of all roles together."""
    marks: tuple[tuple[int, int], ...] = ((0, 0),)
    """(time, total) of `productive` at earlier changes within the window, at least GRAIN_US apart."""
    resizes: tuple[tuple[int, int], ...] = ()
    """(time, ranks more or fewer) within the window: recent goodput is a share of the ranks that there were."""


def opened(roles: Mapping[str, int]) -> Ledger:
    """Return the ledger of a new job, with all ranks in the queue account. `roles`: role -> its number of ranks."""
    clocks = {(role, rank): (Account.QUEUE, 0) for role, count in roles.items() for rank in range(count)}
    return Ledger(
        clocks=Map(clocks), books=Map({(role, Account.QUEUE): RoleAccount(0, count) for role, count in roles.items()})
    )


class Move(NamedTuple):
    """A rank's change to another account."""

    key: RankKey
    account: Account | None
    """The new account; None: the role shrank and dropped the rank."""
    lost: int | None = None
    """Time of its last sign of life, for a rank whose loss is only reported now; the time since then is `detect`."""


def booked(ledger: Ledger, moves: Iterable[Move], spares: Mapping[str, int], now: int) -> Ledger:
    """Return the ledger after the moves of some ranks, all at `now`, and a change of the number of spares by role.

    A rank without a clock (its state was written by an older version) is counted from now on.
    """
    at = max(now, ledger.at)  # the clock may have gone back
    page = _Page(ledger.books, at)
    clocks, floors = ledger.clocks.mutate(), ledger.floors
    for role, change in spares.items():
        page.line(role, Account.SPARE)[1] += change
    for move in moves:
        role, was = move.key[0], clocks.get(move.key)
        if was is not None:
            line = page.line(role, was[0])
            line[1] -= 1
            if move.lost is not None:
                # The time since the last sign of life was booked as if the rank had lived: move it to `detect`.
                amount = at - max(was[1], min(move.lost, at))
                # Metrics have already shown the larger total, and a counter must not fall.
                floors = floors.set((role, was[0]), max(page.shown(role, was[0]), floors.get((role, was[0]), 0)))
                line[0] -= amount
                page.line(role, Account.DETECT)[0] += amount
        if move.account is None:
            del clocks[move.key]
            continue
        page.line(role, move.account)[1] += 1
        clocks[move.key] = (move.account, at)
    productive, marks = _total(ledger, page, at)
    return Ledger(at, clocks.finish(), page.filed(), floors, ledger.ranks, productive, marks, ledger.resizes)


def resized(ledger: Ledger, role: str, before: int, after: int, now: int) -> Ledger:
    """Return the ledger after a role changed its number of ranks at `now`."""
    at = max(now, ledger.at)
    old = ledger.ranks.get(role, RoleAccount(0, before))
    kept = tuple(one for one in ledger.resizes if one[0] > at - WINDOW_US)
    return evolve(
        ledger,
        ranks=ledger.ranks.set(role, RoleAccount(old.upto(at), after, at)),
        resizes=(*kept, (at, after - before))[-MOST_RESIZES:],
    )


def rank_time(ledger: Ledger, role: str, ranks: int, now: int) -> int:
    """Return the microseconds of all ranks of a role since the job's start; `ranks` is their present number."""
    return ledger.ranks.get(role, RoleAccount(0, ranks)).upto(max(now, ledger.at))


class _Page:
    """The entries that one booking changes, brought up to its time: [total, count] each."""

    def __init__(self, books: Map[BookKey, RoleAccount], at: int) -> None:
        self.books = books
        self.at = at
        self.lines: dict[BookKey, list[int]] = {}

    def line(self, role: str, account: Account) -> list[int]:
        """Return the changeable [total, count] of an account, with the total brought up to the booking's time."""
        key = role, account
        line = self.lines.get(key)
        if line is None:
            old = self.books.get(key, _NOTHING)
            line = self.lines[key] = [old.upto(self.at), old.count]
        return line

    def shown(self, role: str, account: Account) -> int:
        """Return the account's total as it could be seen just before the booking."""
        return self.books.get((role, account), _NOTHING).upto(self.at)

    def filed(self) -> Map[BookKey, RoleAccount]:
        """Return the books with the changes of this page."""
        books = self.books
        for key, (total, count) in self.lines.items():
            books = books.set(key, RoleAccount(total, count, self.at))
        return books


def _total(ledger: Ledger, page: _Page, at: int) -> tuple[RoleAccount, tuple[tuple[int, int], ...]]:
    """Return the productive time of all roles together after a booking, and the marks."""
    old, marks = ledger.productive, ledger.marks
    total, count = old.upto(at), old.count
    changed = False
    for (role, account), line in page.lines.items():
        if account is Account.PRODUCTIVE:
            before = page.books.get((role, account), _NOTHING)
            total += line[0] - before.upto(at)
            count += line[1] - before.count
            changed = True
    if not changed:
        return old, marks
    if old.at - marks[-1][0] >= GRAIN_US:
        marks = (*marks, (old.at, old.total))
        # One mark at or before the window's start stays: the total there is interpolated from it.
        while len(marks) > 1 and marks[1][0] <= at - WINDOW_US:
            marks = marks[1:]
    return RoleAccount(total, count, at), marks


def totals(ledger: Ledger, role: str, now: int) -> dict[Account, int]:
    """Return account -> its total in microseconds, for a role; empty accounts are left out."""
    at = max(now, ledger.at)
    held = ((account, ledger.books.get((role, account))) for account in Account)
    sums = {account: entry.upto(at) for account, entry in held if entry is not None}
    return {account: total for account, total in sums.items() if total}


def owed(ledger: Ledger, role: str, now: int) -> dict[Account, int]:
    """Return account -> the amount by which it shows less than before: metric counters add it, so as never to fall."""
    at = max(now, ledger.at)
    found: dict[Account, int] = {}
    for (name, account), floor in ledger.floors.items():
        if name == role and floor > (holds := ledger.books[name, account].upto(at)):
            found[account] = floor - holds
    return found


@dataclass(frozen=True, slots=True)
class Goodput:
    """Productive time as a share (0 to 1) of the time of all ranks; None before any time has passed."""

    overall: float | None
    recent: float | None
    """The share over the last ten minutes, or since the job's start if that is later."""


def goodput(ledger: Ledger, ranks: int, now: int, spent: int | None = None) -> Goodput:
    """Return the job's goodput. `spent`: microseconds of all ranks, for jobs whose number of ranks has changed."""
    at = max(now, ledger.at)
    if not at or not ranks:  # nothing to divide by
        return Goodput(None, None)
    spent = ranks * at if spent is None else spent
    total, begin = ledger.productive.upto(at), max(0, at - WINDOW_US)
    if not begin:  # exact, also for a job whose number of ranks has changed
        return Goodput(total / spent, total / spent)
    lately = ranks * (at - begin) - sum(more * (when - begin) for when, more in ledger.resizes if when > begin)
    recent = (total - _productive_at(ledger, begin)) / lately
    return Goodput(total / spent, min(max(recent, 0.0), 1.0))


def _productive_at(ledger: Ledger, at: int) -> int:
    """Return the productive time at a time in the window, interpolated linearly between two marks."""
    last = ledger.productive
    if at >= last.at:
        return last.upto(at)
    points = (*ledger.marks, (last.at, last.total))
    (start, low), (end, high) = next(pair for pair in pairwise(points) if at < pair[1][0])
    return low + (high - low) * (at - start) // (end - start)
