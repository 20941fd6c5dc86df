"""The faults of a case and their times: drawn from a seed, or read from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from dljob.testing.world.model import FaultMove

MIX: Mapping[str, int] = {
    "kill": 24,
    "error": 10,
    "hang": 5,
    "deaf": 2,
    "node lost": 5,
    "freeze": 6,
    "cut": 6,
    "join": 5,
    "crash": 14,
    "refuse": 4,
    "clock": 3,
    "command": 8,
    "again": 10,
}
"""The weight of each kind of fault."""
COMMANDS = ("restart job", "restart role", "restart rank", "restart role", "restart nobody", "dance job", "stop job")


@dataclass(frozen=True, slots=True)
class Timed:
    """A fault and its time, in seconds from the beginning."""

    at: float
    fault: FaultMove


def chance(name: str) -> Random:
    """Return a random source whose numbers depend on the name alone."""
    return Random(name)  # noqa: S311 - it keeps no secret


def draw(rng: Random, most: int, horizon: float) -> tuple[Timed, ...]:
    """Return 1 to `most` faults within the horizon.

    Many are close together, since faults during a recovery find the most bugs.
    """
    at = sorted(_moments(rng, rng.randint(1, most), horizon))
    kinds, weights = list(MIX), list(MIX.values())
    return tuple(
        Timed(moment, _fault(rng, kind))
        for moment, kind in zip(at, rng.choices(kinds, weights, k=len(at)), strict=True)
    )


def _moments(rng: Random, count: int, horizon: float) -> list[float]:
    moments: list[float] = []
    # Half of the faults follow closely on the one before, the others cluster near the beginning, where a job starts.
    for _ in range(count):
        near = moments and rng.random() < 0.5
        moments.append(round(moments[-1] + rng.random() ** 3 * 5 if near else rng.random() ** 2 * horizon, 3))
    return moments


def _fault(rng: Random, kind: str) -> FaultMove:
    pick = rng.randrange(1 << 16)
    match kind:
        case "error":
            # Indices of `faults.ERRORS`; the last one ends the job at once, so it is rare.
            return FaultMove(kind, pick, rng.choices(range(7), (4, 4, 3, 3, 3, 2, 1))[0])
        case "freeze" | "cut":
            # From less than the heartbeat limit (3 s) to more than the lease (30 s).
            return FaultMove(kind, pick, round(rng.choice((0.5, 3.0, 8.0, 20.0, 60.0)) * (0.5 + rng.random()), 2))
        case "crash":
            return FaultMove(kind, rng.choice((0, 1, 2, 2, 3, 3, 4, 5, 8)), rng.randrange(2))
        case "clock":
            return FaultMove(kind, 0, rng.choice((-3600.0, -30.0, 30.0, 300.0)))
        case "command":
            text = rng.choices(COMMANDS, (3, 5, 5, 5, 1, 1, 1))[0]
            return FaultMove(kind, pick, rng.randrange(8), text)
        case _:
            return FaultMove(kind, pick)


def dump(faults: Sequence[Timed]) -> list[dict[str, Any]]:
    """Return the faults as JSON-able data."""
    return [{"at": timed.at, **asdict(timed.fault)} for timed in faults]


def load(data: Sequence[Mapping[str, Any]]) -> tuple[Timed, ...]:
    """Return the faults from the data of `dump`."""
    return tuple(Timed(row["at"], FaultMove(row["kind"], row["pick"], row["value"], row["text"])) for row in data)
