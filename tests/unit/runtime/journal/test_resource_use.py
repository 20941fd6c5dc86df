"""What a master sums up of the roles whose resources were chosen."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from master_shell_kit import World, end_all, ended, running, until

from dljob.master.state.faults import FaultRecord
from dljob.master.state.state import JobState
from dljob.runtime.controller import sampler
from dljob.runtime.controller.master_loop import MasterLoop
from dljob.runtime.journal.resource_use import ResourceUses
from dljob.runtime.journal.stores import FileStore

ROLES = [{"name": "t", "entrypoint": {"class": "m.C"}, "replicas": 2}, {"name": "o", "entrypoint": {"class": "m.C"}}]


@pytest.fixture
def state(tmp_path: Path) -> JobState:
    return World(tmp_path).setup(roles=ROLES).initial(0.0)


def sample(cpu: tuple[int | None, int | None], peak: tuple[int | None, int | None], letters: str = "pp") -> Any:
    return {"cpu/t": list(cpu), "peak/t": list(peak), "accounts/t": letters, "cpu/o": [9999], "peak/o": [9999]}


def fed(state: JobState, *samples: tuple[float, Any]) -> dict[str, Any]:
    uses = ResourceUses(("t", "t", "gone"))
    for at, columns in samples:
        uses.take(at, state, columns)
    (row,) = uses.rows
    return dict(row)


def test_row_has_the_usual_rate_and_the_highest_peak(state):
    steps = [(20.0 * n, sample((1000 * n, 2000 * n), (500, None))) for n in range(12)]
    last = (240.0, sample((99_000, 24_000), (500, 700)))
    row = fed(state, *steps, last)
    # 23 of 24 windows are at most one CPU; one of rank 0 was far above.
    assert row == {
        "name": "t",
        "productiveSeconds": 0,
        "peakMiB": 700,
        "growthPermille": 400,
        "cpuMillis": 1000,
        "measurements": 24,
        "outOfMemory": 0,
    }


def test_role_without_samples_has_an_empty_row(state):
    assert fed(state, (0.0, {}), (10.0, {"accounts/t": "ii"}))["measurements"] == 0
    assert fed(state, (0.0, sample((1, 1), (0, None))))["peakMiB"] == 0
    assert ResourceUses(()).rows == ()


def test_growth_is_that_of_the_last_quarter(state):
    early = [(0.0, sample((0, 0), (100, 90))), (50.0, sample((0, 0), (300, 90)))]
    assert fed(state, *early, (100.0, sample((0, 0), (300, 90))))["growthPermille"] == 0
    assert fed(state, *early, (100.0, sample((0, 0), (330, 90))))["growthPermille"] == 100


def test_kills_for_memory_are_counted_and_stay(state):
    fault = FaultRecord(1, "process", "OOMKilled", "unit", "why", 1.0, rank="t/1")
    others = [replace(fault, reason="Crash"), replace(fault, rank="o/0"), replace(fault, rank="", target="t/0")]
    told = replace(state, faults=(fault, *others))
    uses = ResourceUses(("t",))
    uses.take(1.0, told, {})
    uses.take(2.0, state, {})
    assert uses.rows[0]["outOfMemory"] == 2


async def test_status_of_a_master_has_the_use_of_chosen_roles(tmp_path, monkeypatch):
    monkeypatch.setattr(sampler, "LEAST_S", 0.01)
    world = World(tmp_path)
    setup = replace(world.setup(), chosen=(("worker", "resources.cpu is 1: why"),))
    master = MasterLoop(setup, world.backend, FileStore(tmp_path / "journal"))
    world.masters.append((master, asyncio.create_task(master.run())))
    await until(running(master))
    await until(lambda: "resourceUse" in master.brief())
    assert [row["name"] for row in master.brief()["resourceUse"]] == ["worker"]
    end_all(world)
    assert "resourceUse" in await ended(world)
    world.close()
