"""How much of their time ranks were busy, and what they waited for in the rest, summed up as samples come.

The ledger calls a rank productive while it waits for its next call or answer. This tells the two apart, by what the
ranks' own clocks say: how long they ran calls of others, and how long their threads stood still for a role, a queue or
the weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from dljob.master.state.ledger import Account
from dljob.runtime.journal.cpu_windows import PRODUCTIVE
from dljob.runtime.journal.sample_rows import Columns
from dljob.runtime.journal.samples import ABSENT
from dljob.runtime.process.messages import KEEPER

_NO_COUNTS: Sequence[int | None] = ()


class BusyTimes:
    """The busy time of each role since this PrimeMaster began.

    `rows` is replaced as a whole, so that any thread may read it.
    """

    def __init__(self) -> None:
        self._at: float | None = None
        self._before: Columns = {}
        """The columns of the last sample."""
        self._productive: dict[tuple[str, int], float] = defaultdict(float)
        """(role, rank) -> seconds in which it was productive."""
        self._counted: dict[tuple[str, int], float] = defaultdict(float)
        """(column, rank) -> seconds that were taken from this counter."""
        self._spent: dict[tuple[str, str], float] = defaultdict(float)
        """(role, "all", "productive" or "served") -> seconds of its ranks."""
        self._waited: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        """Role -> what its ranks waited for -> seconds of its ranks."""
        self.rows: Mapping[str, Mapping[str, Any]] = {}
        """Role -> its share of busy time, the seconds over which it was measured, and what the rest was waited for; a
        role of which nothing is reported is not in it."""

    def take(self, at: float, columns: Columns) -> None:
        """Take the columns of a sample of a time (unix seconds)."""
        lasted = 0.0 if self._at is None else max(0.0, at - self._at)
        if lasted:
            for name, letters in columns.items():
                if name.startswith("accounts/"):
                    self._take_role(name.removeprefix("accounts/"), str(letters), lasted, columns)
            roles = dict.fromkeys(role for role, _ in self._spent)
            self.rows = {role: row for role in roles if (row := self._row(role, columns)) is not None}
        self._at, self._before = at, columns

    def _take_role(self, role: str, letters: str, lasted: float, columns: Columns) -> None:
        before = str(self._before.get(f"accounts/{role}", ""))
        # Only ranks that were productive at both ends: what they did is not known of the others.
        ranks = [rank for rank, pair in enumerate(zip(before, letters, strict=False)) if pair == (PRODUCTIVE,) * 2]
        self._spent[role, "all"] += lasted * (len(letters) - letters.count(ABSENT))
        self._spent[role, "productive"] += lasted * len(ranks)
        for rank in ranks:
            self._productive[role, rank] += lasted
        self._spent[role, "served"] += self._growth(role, f"served/{role}", ranks, columns)
        prefix = f"waited/{role}/"
        for name in columns:
            if name.startswith(prefix):
                self._waited[role][name.removeprefix(prefix)] += self._growth(role, name, ranks, columns)

    def _growth(self, role: str, name: str, ranks: Sequence[int], columns: Columns) -> float:
        """Return the seconds by which counters of milliseconds grew; the next process of a rank begins at 0.

        Hosts tell their counters less often than samples are taken, so that the growth in one may be that of several.
        """
        olds, news = self._before.get(name, _NO_COUNTS), columns.get(name, _NO_COUNTS)
        total = 0.0
        for rank in ranks if news else ():
            old = olds[rank] if rank < len(olds) else None
            new = news[rank] if rank < len(news) else None
            growth = 0 if new is None else new - old if old is not None and old <= new else new
            counted = min(growth / 1000, self._productive[role, rank] - self._counted[name, rank])
            self._counted[name, rank] += counted
            total += counted
        return total

    def _row(self, role: str, columns: Columns) -> dict[str, Any] | None:
        """Return a role's row: a server works in calls, a role that steps or calls others when it waits for nothing."""
        time, productive = self._spent[role, "all"], self._spent[role, "productive"]
        served, waits = (
            self._spent[role, "served"],
            {awaited: spent for awaited, spent in self._waited[role].items() if spent},
        )
        steps = any(step is not None for step in columns.get(f"steps/{role}", _NO_COUNTS))
        serves = f"served/{role}" in columns and not steps
        if not time or not (steps or serves or waits):
            return None
        busy = min(served, productive) if serves else max(0.0, productive - sum(waits.values()))
        rest = (
            {"calls": productive - busy}
            if serves
            else {_name(awaited): waits[awaited] for awaited in sorted(waits, key=lambda awaited: -waits[awaited])}
        )
        return {
            "share": round(busy / time, 4),
            "seconds": round(time, 3),
            "waited": {awaited: round(amount / time, 4) for awaited, amount in rest.items()},
        }


def without_stalls(row: Mapping[str, Any], accounts: Mapping[str, float]) -> Mapping[str, Any]:
    """Return a role's row without the time that was booked as stalled after it had been measured.

    Args:
        row: Of `BusyTimes.rows`.
        accounts: Account -> seconds of the role's ranks, by the ledger.
    """
    account_seconds = {account: amount for account, amount in accounts.items() if account != Account.SPARE}
    if not account_seconds.get(Account.STALLED):
        return row
    productive = account_seconds.get(Account.PRODUCTIVE, 0.0) / sum(account_seconds.values())
    share = min(row["share"], productive)
    # What stands still waits, or is waited for: waits go before work.
    waiting_part = min(1.0, (productive - share) / (sum(row["waited"].values()) or 1.0))
    waited = {awaited: round(part * waiting_part, 4) for awaited, part in row["waited"].items()}
    return {**row, "share": round(share, 4), "waited": waited}


def _name(awaited: str) -> str:
    """Return what was waited for in words: `calls of reward`, `queue samples`, `weights policy`."""
    if awaited.startswith(KEEPER):
        kind, _, name = awaited.removeprefix(KEEPER).partition(":")
        return f"{kind} {name}"
    return f"calls of {awaited}"
