"""The ledger: into which account the time of each rank went, in whole microseconds since the job's start.

A rank is in exactly one account at any time, and leaves it only by being moved to another: so the sums are the time
times the ranks, exactly, whatever happened. Time never goes back here, whatever the clock does.
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
"""The account that a rank is in, and since when."""

WINDOW_US = 600 * 10**6
"""How far back "recent" goes."""
GRAIN_US = 30 * 10**6
"""How finely that window's beginning is known."""


class Account(StrEnum):
    """Where the time of a rank goes. docs/ledger.md says from which event to which."""

    QUEUE = "queue"
    SCHEDULE = "schedule"
    INIT = "init"
    PRODUCTIVE = "productive"
    DETECT = "detect"
    DECIDE = "decide"
    REPLACE = "replace"
    RENDEZVOUS = "rendezvous"
    RECOMPUTE = "recompute"
    WAIT = "wait"
    IDLE = "idle"
    SPARE = "spare"
    """Of process spares, which are no ranks: it comes on top of the ranks' time."""


BookKey: TypeAlias = tuple[str, Account]
"""(role, account)."""


@dataclass(frozen=True, slots=True)
class RoleAccount:
    """An account of a role: what it held at `at`, and how many processes add to it since."""

    total: int = 0
    count: int = 0
    at: int = 0

    def upto(self, at: int) -> int:
        """What it holds at a time that is not before its own."""
        return self.total + self.count * (at - self.at)


_NOTHING = RoleAccount()


@dataclass(frozen=True, slots=True)
class Ledger:
    """All accounts of a job. `at` is the time of the last booking."""

    at: int = 0
    clocks: Map[RankKey, Clock] = field(default_factory=Map[RankKey, Clock])
    books: Map[BookKey, RoleAccount] = field(default_factory=Map[BookKey, RoleAccount])
    floors: Map[BookKey, int] = field(default_factory=Map[BookKey, int])
    """What an account was seen to hold before time was moved out of it: what counts up shows no less."""
    ranks: Map[str, RoleAccount] = field(default_factory=Map[str, RoleAccount])
    """Role -> the time of all its ranks, of roles whose number of ranks has changed."""
    productive: RoleAccount = RoleAccount()
    """That account of all roles together."""
    marks: tuple[tuple[int, int], ...] = ((0, 0),)
    """(time, its total) at some of its earlier changes, so many that the window is known; a grain or more apart."""


def opened(roles: Mapping[str, int]) -> Ledger:
    """The ledger of a job that begins: all ranks queue. `roles`: role -> its number of ranks."""
    clocks = {(role, rank): (Account.QUEUE, 0) for role, count in roles.items() for rank in range(count)}
    return Ledger(
        clocks=Map(clocks), books=Map({(role, Account.QUEUE): RoleAccount(0, count) for role, count in roles.items()})
    )


class Move(NamedTuple):
    """A rank goes to another account; `lost` is when it gave its last sign of life, if that was before."""

    key: RankKey
    account: Account | None
    """None: its role has it no more."""
    lost: int | None = None


def booked(ledger: Ledger, moves: Iterable[Move], spares: Mapping[str, int], now: int) -> Ledger:
    """The ledger after ranks went to other accounts, all of them now, and spares (by role, a difference) came or went.

    A rank that no book knows (the state is of an older version) is on the books from now on.
    """
    at = max(now, ledger.at)
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
                amount = at - max(was[1], min(move.lost, at))
                floors = floors.set((role, was[0]), max(page.shown(role, was[0]), floors.get((role, was[0]), 0)))
                line[0] -= amount
                page.line(role, Account.DETECT)[0] += amount
        if move.account is None:
            del clocks[move.key]
            continue
        page.line(role, move.account)[1] += 1
        clocks[move.key] = (move.account, at)
    productive, marks = _total(ledger, page, at)
    return Ledger(at, clocks.finish(), page.filed(), floors, ledger.ranks, productive, marks)


def resized(ledger: Ledger, role: str, before: int, after: int, now: int) -> Ledger:
    """The ledger of a job of which a role has another number of ranks from now on."""
    at = max(now, ledger.at)
    old = ledger.ranks.get(role, RoleAccount(0, before))
    return evolve(ledger, ranks=ledger.ranks.set(role, RoleAccount(old.upto(at), after, at)))


def rank_time(ledger: Ledger, role: str, ranks: int, now: int) -> int:
    """The time of all ranks of a role, which has so many now."""
    return ledger.ranks.get(role, RoleAccount(0, ranks)).upto(max(now, ledger.at))


class _Page:
    """The entries that a booking changes, brought up to its time: [total, count] each."""

    def __init__(self, books: Map[BookKey, RoleAccount], at: int) -> None:
        self.books = books
        self.at = at
        self.lines: dict[BookKey, list[int]] = {}

    def line(self, role: str, account: Account) -> list[int]:
        """The line of a book that is written to: what it holds until now, and how many there are at it."""
        key = role, account
        line = self.lines.get(key)
        if line is None:
            old = self.books.get(key, _NOTHING)
            line = self.lines[key] = [old.upto(self.at), old.count]
        return line

    def shown(self, role: str, account: Account) -> int:
        """What everybody could see until now."""
        return self.books.get((role, account), _NOTHING).upto(self.at)

    def filed(self) -> Map[BookKey, RoleAccount]:
        """The books with this page."""
        books = self.books
        for key, (total, count) in self.lines.items():
            books = books.set(key, RoleAccount(total, count, self.at))
        return books


def _total(ledger: Ledger, page: _Page, at: int) -> tuple[RoleAccount, tuple[tuple[int, int], ...]]:
    """The productive time of all roles together, and the marks."""
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
        while len(marks) > 1 and marks[1][0] <= at - WINDOW_US:
            marks = marks[1:]
    return RoleAccount(total, count, at), marks


def totals(ledger: Ledger, role: str, now: int) -> dict[Account, int]:
    """What each account of a role holds, those that hold nothing left out."""
    at = max(now, ledger.at)
    held = ((account, ledger.books.get((role, account))) for account in Account)
    sums = {account: entry.upto(at) for account, entry in held if entry is not None}
    return {account: total for account, total in sums.items() if total}


def owed(ledger: Ledger, role: str, now: int) -> dict[Account, int]:
    """By how much an account shows less than it showed before: a counter adds that, for it may never fall."""
    at = max(now, ledger.at)
    found: dict[Account, int] = {}
    for (name, account), floor in ledger.floors.items():
        if name == role and floor > (holds := ledger.books[name, account].upto(at)):
            found[account] = floor - holds
    return found


@dataclass(frozen=True, slots=True)
class Goodput:
    """Productive time as a share of all time of all ranks, in 0..1; None before any time has passed."""

    overall: float | None
    recent: float | None
    """Over the last ten minutes, or since the job's start."""


def goodput(ledger: Ledger, ranks: int, now: int, spent: int | None = None) -> Goodput:
    """How much of the ranks' time was productive. `spent`: that time, where there were not always as many as now."""
    at = max(now, ledger.at)
    if not at or not ranks:
        return Goodput(None, None)
    spent = ranks * at if spent is None else spent
    total, begin = ledger.productive.upto(at), max(0, at - WINDOW_US)
    recent = (total - _productive_at(ledger, begin)) / (ranks * (at - begin))
    return Goodput(total / spent, min(max(recent, 0.0), 1.0))


def _productive_at(ledger: Ledger, at: int) -> int:
    """The productive time at a time in the window; between two marks as if it had grown evenly."""
    last = ledger.productive
    if at >= last.at:
        return last.upto(at)
    points = (*ledger.marks, (last.at, last.total))
    (start, low), (end, high) = next(pair for pair in pairwise(points) if at < pair[1][0])
    return low + (high - low) * (at - start) // (end - start)
