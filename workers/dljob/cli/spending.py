"""Text and data of `dljob ledger JOB`: the accounts of the ranks' time, and what its failures cost. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from dljob.api.shown_job import JobAccounts
from dljob.cli.description import one_line
from dljob.cli.output import aligned, lost_steps
from dljob.cli.terminal import safe, unbroken
from dljob.master.state.ledger import Account
from dljob.spec.status import total_restarts
from dljob.telemetry.wording import counted, seconds

Json = Mapping[str, Any]

WHOLE = 1000
"""Sum of the shares of a column, in tenths of a percent."""
_LEAST = 0.0005
"""Smallest share of a wait that is shown: below it prints as 0.0 %."""
_CAUSE = 200
_LARGE = 1e15
"""Numbers beyond it are damage."""
_GAP = 2


class Column(NamedTuple):
    """Accounts of a role, or of the whole job, in process-seconds."""

    name: str
    accounts: Mapping[str, float]
    """In the ledger's order, without `spare`."""
    spare: float
    """Time of process spares, which are no ranks."""
    devices: float
    """Devices of all its ranks together, by time: device-seconds."""
    productive: float
    """Device-seconds of the account `productive`."""
    busy: Json = MappingProxyType({})
    """Share of its time in which it was busy, and what the rest was waited for; empty where nothing of it is known."""

    @property
    def total(self) -> float:
        """Time of the ranks in all accounts."""
        return sum(self.accounts.values())


def columns(status: Json, spec: Json) -> list[Column]:
    """Return the whole job, then its roles; no roles where the ledger has none."""
    per_rank = {str(role.get("name")): _devices(role) for role in _rows(spec.get("roles"))}
    ledger = _object(status.get("ledger"))
    roles = [
        _column(
            str(role.get("name")), _object(role.get("accounts")), per_rank.get(str(role.get("name")), 0.0)
        )._replace(busy=_object(role.get("busy")))
        for role in _rows(ledger.get("roles"))
    ]
    job_column = _column("all", _object(ledger.get("accounts")), 0.0)
    devices, productive = sum(role.devices for role in roles), sum(role.productive for role in roles)
    return [job_column._replace(devices=devices, productive=productive), *roles]


# A folder may be of another version, or damaged: what is not of the expected kind counts as missing.


def _object(value: object) -> Json:
    return cast("Json", value) if isinstance(value, Mapping) else {}


def _rows(value: object) -> list[Json]:
    rows = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("Json", row) for row in rows if isinstance(row, Mapping)]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < _LARGE else None


def _devices(role: Json) -> float:
    """Return the devices of a rank: a number, or a share of one."""
    if "accelerator" not in role:
        return 0.0
    with suppress(ValueError):  # as above
        return float(str(_object(role["accelerator"]).get("count", 1)))
    return 0.0


def _column(name: str, accounts: Json, devices: float) -> Column:
    known = [account.value for account in Account]
    # Accounts of a later dljob come last, so that the column is whole.
    order = [
        *(account_name for account_name in known if account_name in accounts),
        *(account_name for account_name in accounts if account_name not in known),
    ]
    spent = {
        account_name: _number(accounts[account_name]) or 0.0 for account_name in order if account_name != Account.SPARE
    }
    total = sum(spent.values())
    spare = _number(accounts.get(Account.SPARE)) or 0.0
    return Column(name, spent, spare, devices * total, devices * spent.get(Account.PRODUCTIVE, 0.0))


def shares(accounts: Mapping[str, float]) -> dict[str, int]:
    """Return each account's share in tenths of a percent; together exactly 1000, or no shares of no time."""
    total = sum(accounts.values())
    if total <= 0:
        return {}
    exact = {name: amount / total * WHOLE for name, amount in accounts.items()}
    rounded = {name: int(share) for name, share in exact.items()}
    # The remainders go to the accounts that rounding down cost most: a column that is summed up by hand is whole.
    for name in sorted(exact, key=lambda name: rounded[name] - exact[name])[: WHOLE - sum(rounded.values())]:
        rounded[name] += 1
    return rounded


def lines(job: JobAccounts, width: int) -> list[str]:
    """Return what a terminal of that many columns shows."""
    status, ledger = job.overview.status, _object(job.overview.status.get("ledger"))
    shown = columns(status, job.spec)
    head = f"{job.overview.title}: {job.overview.phase}"
    if _number(ledger.get("goodput")) is None or not shown[0].total:
        is_readable = isinstance(status.get("ledger"), Mapping | None)
        reason = "no rank has begun" if is_readable else "the ledger is damaged, or of another version"
        return [_plain(head), f"no time to account for: {reason}"]
    ranks = counted(int(_number(ledger.get("processes")) or 0), "rank")
    head += f", {seconds(_number(ledger.get('seconds')) or 0.0)}, {ranks}"
    text = [_plain(head), _goodput(ledger, shown[0])]
    for table in _tables(shown, width):
        text += ["", *table]
    return [*text, *_waits(shown), *_incidents(status, shown[0])]


def _waits(shown: Sequence[Column]) -> list[str]:
    """Return, of each role whose busy time is known, what it waited for in the rest of its time."""
    rows: list[str] = []
    for column in shown:
        waited = {cause: _number(share) or 0.0 for cause, share in _object(column.busy.get("waited")).items()}
        words = ", ".join(f"{cause} {share:.1%}" for cause, share in waited.items() if share >= _LEAST)
        rows += [_plain(f"  {column.name}: {words}")] if words else []
    return ["", "waited, while productive, for:", *rows] if rows else []


def _goodput(ledger: Json, job_column: Column) -> str:
    recent = _number(ledger.get("recentGoodput"))
    late = "" if recent is None else f", last 10 min {recent:.1%}"
    devices_text = f"; {_hours(job_column.devices)} device-hours, {_hours(job_column.productive)} of them productive"
    return f"goodput {ledger['goodput']:.1%}{late}{devices_text if job_column.devices else ''}"


def _hours(device_seconds: float) -> str:
    hours = device_seconds / 3600
    return f"{hours:.0f}" if hours >= 100 else f"{hours:.3g}"


def _tables(shown: Sequence[Column], width: int) -> list[list[str]]:
    """Return the accounts as tables that fit the width: the job's column in the first, each role's in one of them."""
    labels = ["ACCOUNT", *shown[0].accounts, "total", "rank time"]
    labels += ["busy"] if any(column.busy for column in shown) else []
    labels += ["spares"] if shown[0].spare else []
    labels += ["device-hours"] if shown[0].devices else []
    first, tables, room = max(map(len, labels)), list[list[Sequence[str]]](), 0
    for column in shown:
        cells = _cells(column, labels)
        needs = len(cells[0]) + _GAP
        if not tables or needs > room:
            tables.append([labels])
            room = width - first
        tables[-1].append(cells)
        room -= needs
    return [aligned(list(zip(*table, strict=True))) for table in tables]


def _cells(column: Column, labels: Sequence[str]) -> list[str]:
    """Return a column's cells, all equally wide."""
    part = shares(column.accounts)
    known = {
        **{name: "-" if name not in part else f"{part[name] / 10:.1f} %" for name in labels},
        "ACCOUNT": _plain(column.name),
        "total": f"{sum(part.values()) / 10:.1f} %",
        "rank time": seconds(column.total),
        "busy": "-" if (share := _number(column.busy.get("share"))) is None else f"{share:.1%}".replace("%", " %"),
        "spares": seconds(column.spare),
        "device-hours": _hours(column.devices),
    }
    longest = max(len(known[name]) for name in labels)
    return [known[name].rjust(longest) for name in labels]


_LOST = (Account.DETECT, Account.DECIDE, Account.REPLACE, Account.RENDEZVOUS, Account.RECOMPUTE)
"""Accounts that time goes to between a failure and the next new step, beside `init`."""


def _incidents(status: Json, job_column: Column) -> list[str]:
    """Return what the failures cost: together by the accounts, and each by its time to recover and its steps."""
    faults = _rows(status.get("recentFaults"))
    if not faults:
        return []
    total = total_restarts(_object(status.get("restarts")))
    lost = {account: job_column.accounts[account] for account in _LOST if job_column.accounts.get(account)}
    cost = sum(lost.values())
    spent = f"; {' + '.join(lost)}: {cost / job_column.total:.1%}, {seconds(cost)} of the ranks" if lost else ""
    return ["", f"restarts: {total}{spent}", *(_incident(fault) for fault in faults)]


def _incident(fault: Json) -> str:
    spent = _number(fault.get("seconds"))
    took = "not yet recovered" if spent is None else f"recovered in {seconds(spent)}"
    target = str(fault.get("target"))
    cause_text = str(fault.get("firstCause") or "").removeprefix(f"{target}: ")
    cause = one_line(f"{target} [{fault.get('level')}] {cause_text}", _CAUSE)
    lost = "" if _number(fault.get("lostSteps")) is None else lost_steps(fault)
    return _plain(f"  {one_line(str(fault.get('detectedAt') or '-'), _CAUSE)} {took}{lost}: {cause}")


def _plain(text: str) -> str:
    """Return a text of users in which no escape sequence is left."""
    return safe(unbroken(text), colours=False)


def data(job: JobAccounts) -> dict[str, Any]:
    """Return the same for programs; times in process-seconds and device-seconds."""
    status, ledger = job.overview.status, _object(job.overview.status.get("ledger"))
    job_column, *roles = columns(status, job.spec)
    known = {key: status.get(key) for key in ("name", "uid") if key in status}
    brief = {key: ledger.get(key) for key in ("seconds", "processes", "goodput", "recentGoodput")}
    return {
        **known,
        "phase": job.overview.phase,
        **brief,
        **_data(job_column),
        "roles": [{"name": role.name, **_data(role), **({"busy": role.busy} if role.busy else {})} for role in roles],
        "incidents": _rows(status.get("recentFaults")),
    }


def _data(column: Column) -> dict[str, Any]:
    part = shares(column.accounts)
    return {
        "rankSeconds": round(column.total, 6),
        "deviceSeconds": round(column.devices, 6),
        "productiveDeviceSeconds": round(column.productive, 6),
        "spareSeconds": round(column.spare, 6),
        "accounts": {
            name: {"seconds": amount, "share": part.get(name, 0) / WHOLE} for name, amount in column.accounts.items()
        },
    }
