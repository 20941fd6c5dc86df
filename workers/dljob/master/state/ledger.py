"""The ledger: the account that each rank's time went to, in whole microseconds since the job's start.

A rank is in exactly one account at any time, and leaves it only for another one. So the accounts add up to the time
multiplied by the number of ranks, exactly. The ledger's own time never goes back, whatever the clock does.
"""

from __future__ import annotations

from collections import Counter
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
    """The rank starts: up to its first step, call or item, where it reports any, else until its user code runs. A
    restarted rank that had reported steps: up to its next one."""
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
    STALLED = "stalled"
    """The rank stands still in a stall: it waits for a rank that does not go on, or is the one that does not."""
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
    stalled: Map[RankKey, Clock] = field(default_factory=Map[RankKey, Clock])
    """Rank in `stalled` -> the account that it had before, and since when it had that one."""
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


def new_ledger(roles: Mapping[str, int]) -> Ledger:
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
    stalled: int | None = None
    """For a rank in `stalled`: when its stall began. The time since then is taken from the account that it had."""
    resumed: bool = False
    """Whether the stall of a rank that was in `stalled` ended by itself: what it took is given back."""
    began: int | None = None
    """When its process did its first work, for a rank of which only this moment tells that it was not productive."""


def book_moves(ledger: Ledger, moves: Iterable[Move], spares: Mapping[str, int], now: int) -> Ledger:
    """Return the ledger after the moves of some ranks, all at `now`, and a change of the number of spares by role.

    A rank without a clock is counted from now on.
    """
    at = max(now, ledger.at)  # the clock may have gone back
    page = _Page(ledger.books, ledger.floors, at)
    clocks, stalled = ledger.clocks.mutate(), ledger.stalled
    for role, change in spares.items():
        page.line(role, Account.SPARE)[1] += change
    for move in moves:
        role, before = move.key[0], clocks.get(move.key)
        if before is None:
            clock = origin = None
        else:
            clock, origin = _redate(page, move, before, stalled.get(move.key))
            if move.lost is not None:
                # The time since the last sign of life was booked as if the rank had lived: move it to `detect`.
                page.transfer(role, clock[0], Account.DETECT, max(clock[1], min(move.lost, at)), at)
                clock = None
            page.line(role, before[0])[1] -= 1
        if origin is not None:
            stalled = stalled.set(move.key, origin)
        elif move.key in stalled:
            stalled = stalled.delete(move.key)
        if move.account is None:
            del clocks[move.key]
            continue
        page.line(role, move.account)[1] += 1
        clocks[move.key] = clock if clock is not None and clock[0] is move.account else (move.account, at)
    productive, marks = _total(ledger, page, at)
    books = page.filed()
    return Ledger(at, clocks.finish(), books, stalled, page.floors, ledger.ranks, productive, marks, ledger.resizes)


def _redate(page: _Page, move: Move, clock: Clock, origin: Clock | None) -> tuple[Clock, Clock | None]:
    """Move time between accounts where only this event tells when a rank's stall, or its work, began or ended.

    Args:
        page: The booking.
        move: The rank's move.
        clock: The rank's account before it, and since when.
        origin: For a rank in `stalled`, its account before the stall, and since when.

    Returns:
        Clock and origin as they would be if this had been known at the time. The origin is None outside of `stalled`.
    """
    role, at = move.key[0], page.at
    if origin is not None and move.resumed:
        # A rank may be in another stall, too: what that one takes is not given back.
        end = at if move.stalled is None else min(max(move.stalled, clock[1]), at)
        page.transfer(role, Account.STALLED, origin[0], clock[1], end)
        clock = Account.STALLED, end
    if move.account is not Account.STALLED and origin is not None:
        clock, origin = (origin if move.resumed else clock), None
    source = clock if origin is None else origin
    if move.began is not None and source[0] is Account.PRODUCTIVE:
        end = min(max(move.began, source[1]), at if origin is None else clock[1])
        page.transfer(role, Account.PRODUCTIVE, Account.INIT, source[1], end)
        source = Account.PRODUCTIVE, end
        clock, origin = (source, None) if origin is None else (clock, source)
    if move.stalled is not None:
        # Not before the rank came into its last account: what it did in an earlier one is known better.
        begin = at if origin is None else clock[1]
        earlier = max(source[1], min(move.stalled, begin))
        page.transfer(role, source[0], Account.STALLED, earlier, begin)
        clock, origin = (Account.STALLED, earlier), source
    return clock, origin


def resize_role(ledger: Ledger, role: str, before: int, after: int, now: int) -> Ledger:
    """Return the ledger after a role changed its number of ranks at `now`."""
    at = max(now, ledger.at)
    old = ledger.ranks.get(role, RoleAccount(0, before))
    recent_resizes = tuple(resize for resize in ledger.resizes if resize[0] > at - WINDOW_US)
    return evolve(
        ledger,
        ranks=ledger.ranks.set(role, RoleAccount(old.upto(at), after, at)),
        resizes=(*recent_resizes, (at, after - before))[-MOST_RESIZES:],
    )


def rank_time(ledger: Ledger, role: str, ranks: int, now: int) -> int:
    """Return the microseconds of all ranks of a role since the job's start; `ranks` is their present number."""
    return ledger.ranks.get(role, RoleAccount(0, ranks)).upto(max(now, ledger.at))


class _Page:
    """The entries that one booking changes, brought up to its time: [total, count] each."""

    def __init__(self, books: Map[BookKey, RoleAccount], floors: Map[BookKey, int], at: int) -> None:
        self.books = books
        self.floors = floors
        self.at = at
        self.lines: dict[BookKey, list[int]] = {}
        self.productive_shifts = Counter[tuple[int, int]]()
        """(begin, end) of past time -> ranks more or fewer that were productive then, as is known now."""

    def line(self, role: str, account: Account) -> list[int]:
        """Return the changeable [total, count] of an account, with the total brought up to the booking's time."""
        key = role, account
        line = self.lines.get(key)
        if line is None:
            old = self.books.get(key, _NOTHING)
            line = self.lines[key] = [old.upto(self.at), old.count]
        return line

    def transfer(self, role: str, source: Account, target: Account, begin: int, end: int) -> None:
        """Move the time of one rank from `begin` to `end`, which is booked already, to another account."""
        if end <= begin:
            return
        # Metrics have already shown the larger total, and a counter must not fall.
        floor = max(self.shown(role, source), self.floors.get((role, source), 0))
        self.floors = self.floors.set((role, source), floor)
        self.line(role, source)[0] -= end - begin
        self.line(role, target)[0] += end - begin
        self.productive_shifts[begin, end] += (target is Account.PRODUCTIVE) - (source is Account.PRODUCTIVE)

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
    if shifts := [(begin, end, ranks) for (begin, end), ranks in page.productive_shifts.items() if ranks]:
        marks = tuple((when, total + sum(n * max(0, min(when, e) - b) for b, e, n in shifts)) for when, total in marks)
    return RoleAccount(total, count, at), marks


def totals(ledger: Ledger, role: str, now: int) -> dict[Account, int]:
    """Return account -> its total in microseconds, for a role; empty accounts are left out."""
    at = max(now, ledger.at)
    entries = ((account, ledger.books.get((role, account))) for account in Account)
    sums = {account: entry.upto(at) for account, entry in entries if entry is not None}
    return {account: total for account, total in sums.items() if total}


def counter_shortfalls(ledger: Ledger, role: str, now: int) -> dict[Account, int]:
    """Return account -> the amount by which it shows less than before: metric counters add it, so as never to fall."""
    at = max(now, ledger.at)
    shortfalls: dict[Account, int] = {}
    for (name, account), floor in ledger.floors.items():
        if name == role and floor > (total := ledger.books[name, account].upto(at)):
            shortfalls[account] = floor - total
    return shortfalls


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
