"""The sampler: what of a master goes into a sample, and that no sample troubles the job."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from master_shell_kit import World, end_all, ended, running, until

from dljob.master.state.ledger import Account
from dljob.runtime.backend.interface import ActorLostError
from dljob.runtime.controller import sampler
from dljob.runtime.controller.sampler import RowMaker, SampledMaster, Sampler
from dljob.runtime.journal.sample_rows import SampleRow
from dljob.runtime.journal.samples import ACCOUNTS, SampleWriter, read
from dljob.runtime.process.messages import Heartbeat

ROLES = [
    {"name": "driver", "entrypoint": {"class": "m.C"}, "driver": True},
    {"name": "worker", "entrypoint": {"class": "m.C"}, "replicas": 3},
]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def view(world: World, **progress: Any) -> SampledMaster:
    told = {(name.partition("_")[0], int(name.partition("_")[2])): value for name, value in progress.items()}
    return SampledMaster(7.0, world.setup(roles=ROLES).initial(0.0), told)


def test_sample_has_steps_accounts_and_metrics_of_the_driver(world):
    metrics = {"loss": 0.5, "odd": math.nan, "reward": math.inf}
    seen = view(world, driver_0=(4, metrics), worker_1=(9, {"own": 1.0}))
    assert RowMaker().columns(seen) == {
        "accounts/driver": "q",
        "accounts/worker": "qqq",
        "steps/driver": [4],
        "steps/worker": [None, 9, None],
        "progress/loss": 0.5,
        "progress/odd": None,
        "progress/reward": None,
    }


def test_role_without_steps_has_no_column_of_steps(world):
    assert set(RowMaker().columns(view(world))) == {"accounts/driver", "accounts/worker"}


def test_number_of_metrics_is_bounded(world):
    metrics = {f"m{n}": float(n) for n in range(1000)}
    found = RowMaker().columns(view(world, driver_0=(1, metrics)))
    assert sum(name.startswith("progress/") for name in found) == sampler.METRICS


def test_accounts_are_made_once_for_a_ledger(world, monkeypatch):
    seen, rows = view(world), RowMaker()
    first = rows.columns(seen)
    monkeypatch.setattr(sampler, "accounts", None)
    assert rows.columns(seen)["accounts/worker"] is first["accounts/worker"]


def test_each_account_has_a_letter_of_its_own():
    assert set(ACCOUNTS) == {account.value for account in Account}
    assert len(set(ACCOUNTS.values()) | {sampler.ABSENT}) == len(Account) + 1


async def test_job_leaves_samples_of_all_its_time(world, monkeypatch):
    monkeypatch.setattr(sampler, "LEAST_S", 0.01)
    shell = world.master()
    await until(running(shell))
    shell.take_heartbeat(Heartbeat("worker", "01234567/worker/1/1", 1, {1: (1, 12, {"loss": 2.0}), 0: (1, 11, {})}))
    await until(lambda: read(world.folder).steps)
    end_all(world)
    await ended(world)
    found = read(world.folder)
    assert found.unrecorded == ()
    assert found.times == sorted(found.times)
    assert [ranks[-1] for ranks in found.steps["worker"]] == [11, 12]
    assert found.accounts["worker"][-1] == "ee"
    assert "pp" in found.accounts["worker"]
    assert [path.suffix for path in (world.folder / "samples").iterdir()] == [".z"]


async def test_later_master_goes_on_with_the_samples(world, monkeypatch):
    monkeypatch.setattr(sampler, "LEAST_S", 0.01)
    shell = world.master()
    await until(running(shell))
    shell.take_heartbeat(Heartbeat("worker", "01234567/worker/1/1", 1, {1: (1, 12, {"loss": 2.0})}))
    await until(lambda: read(world.folder).steps)
    before = len(read(world.folder).times)
    await world.die()
    await until(running(world.master()))
    await until(lambda: len(read(world.folder).times) > before + 3)
    found = read(world.folder)
    assert found.unrecorded == ()
    # Nobody has sent the new master a heartbeat.
    assert found.steps["worker"][1][-1] == 12
    world.close()


def test_later_master_tells_the_last_values_until_it_hears_of_newer_ones(world):
    rows = RowMaker()
    journaled = view(world, driver_0=(3, {"loss": 0.9}), worker_1=(4, {}))
    before = {"accounts/worker": "ppp", "steps/driver": [9], "steps/worker": [7, 8], "progress/loss": 0.5,
              "calls/driver>worker.run": [5, 1, 0, 0, 2, 90], "memory/worker": [1, 2, 3]}  # fmt: skip
    rows.recall(before, journaled)
    first = rows.columns(journaled)
    assert first["accounts/worker"] != "ppp"
    assert {name: first[name] for name in before if name != "accounts/worker"} == {
        **{name: value for name, value in before.items() if name != "accounts/worker"},
        "steps/worker": [7, 8, None],
    }
    # A rank that is heard counts by what it says, lower than before if it had to go back.
    told: dict[tuple[str, int], tuple[int, Any]] = {**journaled.progress}
    told |= {("worker", 1): (2, {}), ("driver", 0): (10, {"loss": 0.4})}
    usage = {"a0": ("driver", {"calls": {"worker.run": [6, 0, 0, 0, 1, 95]}})}
    later = rows.columns(used(world, **usage)._replace(progress=told))
    assert (later["steps/worker"], later["steps/driver"], later["progress/loss"]) == ([7, 2, None], [10], 0.4)
    assert (later["calls/driver>worker.run"], later["memory/worker"]) == ([6, 0, 0, 0, 1, 95], [1, 2, 3])
    # A role without steps in the last row has those of this master.
    rows.recall({"steps/driver": [9]}, journaled)
    assert rows.columns(journaled)["steps/worker"] == [None, 4, None]


async def test_folder_that_cannot_be_written_is_told_once(world, caplog, monkeypatch):
    monkeypatch.setattr(sampler, "LEAST_S", 0.001)
    (world.folder / "samples").write_text("in the way")
    turns = 0

    def look() -> SampledMaster:
        nonlocal turns
        turns += 1
        return view(world)._replace(at=float(turns))

    own = Sampler(world.setup().info, look, world.backend)
    task = asyncio.create_task(own.run())
    await until(lambda: turns > 5)
    await own.end()
    task.cancel()
    own.close()
    said = [record.message for record in caplog.records if "the recording of samples failed" in record.message]
    assert len(said) == 1
    assert "samples" in said[0]


async def test_large_job_is_sampled_less_often(world, monkeypatch):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        raise asyncio.CancelledError

    monkeypatch.setattr(sampler.asyncio, "sleep", sleep)
    for ranks in (3, 10_000):
        roles = [{**ROLES[1], "replicas": ranks}]
        seen = SampledMaster(float(ranks), world.setup(roles=roles).initial(0.0), {})
        own = Sampler(world.setup().info, lambda seen=seen: seen, world.backend)
        with pytest.raises(asyncio.CancelledError):
            await own.run()
        own.close()
    assert slept == [1.0, 10.0]


async def test_end_does_not_wait_for_a_volume_that_hangs(world, monkeypatch):
    monkeypatch.setattr(sampler, "END_S", 0.05)
    goes_on = threading.Event()

    def hang(_: SampleWriter, row: SampleRow) -> None:
        goes_on.wait()

    monkeypatch.setattr(SampleWriter, "append", hang)
    own = Sampler(world.setup().info, lambda: view(world), world.backend)
    await own.end()
    goes_on.set()
    own.close()


def used(world: World, **usage: tuple[str, dict[str, Any]]) -> SampledMaster:
    """Return a view with usages by actor; `a0` is the present process of worker 0, others have ended."""
    seen = view(world)
    host, own = next(iter(seen.state.hosts.items()))
    hosts = seen.state.hosts.set(host, dataclasses.replace(own, actor="a0"))
    return seen._replace(state=dataclasses.replace(seen.state, hosts=hosts), usage=usage)


def usage_of(world: World, rows: RowMaker, **usage: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    columns = rows.columns(used(world, **usage))
    return {name: value for name, value in columns.items() if not name.startswith("accounts/")}


def test_calls_of_processes_that_ended_stay_in_the_sums(world):
    rows = RowMaker()
    first = usage_of(world, rows, a0=("driver", {"calls": {"worker.run": [3, 2, 0, 0, 2, 10]}}))
    assert first == {"calls/driver>worker.run": [3, 2, 0, 0, 2, 10]}
    ended = {"calls": {"worker.run": [5, 2, 1, 1, 2, 50]}}
    later = usage_of(world, rows, old=("driver", ended), a0=("driver", {"calls": {"worker.run": [4, 1, 0, 0, 1, 20]}}))
    assert later == {"calls/driver>worker.run": [9, 1, 1, 1, 1, 70]}  # nobody waits in a process that ended
    again = usage_of(world, rows, old=("driver", ended), a0=("driver", {"calls": {"worker.run": [4, 0, 0, 0, 0, 30]}}))
    assert again == {"calls/driver>worker.run": [9, 0, 1, 1, 0, 80]}


def test_memory_devices_and_weights_are_kept_by_rank(world):
    rows = RowMaker()
    noted = [
        ["published:policy", 2, 6],
        ["held:policy", 1, 5],
        ["device", 1, 300],
        ["saves", 0, 4],
        ["saving", 0, 90],
        ["waited:r", 1, 7],
    ]
    usage = {"memory": [[0, 70], [2, 80]], "peak": [[0, 75]], "cpu": [[2, 900]], "served": [[0, 40]], "noted": noted}
    found = usage_of(world, rows, a0=("worker", usage))
    assert found == {
        "memory/worker": [70, None, 80],
        "peak/worker": [75, None, None],
        "cpu/worker": [None, None, 900],
        "saves/worker": [4, None, None],
        "served/worker": [40, None, None],
        "waited/worker/r": [None, 7, None],
        "saving/worker": [90, None, None],
        "device/worker": [None, 300, None],
        "published/policy": 6,
        "held/worker/policy": [None, 5, 6],
    }
    older = usage_of(world, rows, a0=("worker", {"noted": [["published:policy", 2, 4]]}))
    assert older["published/policy"] == 6
    assert older["held/worker/policy"] == [None, 5, 4]


def test_usage_of_forgotten_processes_takes_no_memory(world):
    rows = RowMaker()
    usage_of(world, rows, **{f"b{n}": ("worker", {"memory": [[0, n]]}) for n in range(100)})
    usage_of(world, rows, a0=("worker", {"memory": [[0, 1]]}))
    assert list(rows.usage.taken) == ["a0"]


async def test_queues_in_use_are_asked_for_their_fill(world, monkeypatch):
    monkeypatch.setattr(sampler, "QUEUES_S", 0.001)
    asked: list[str] = []

    class Queues:
        async def lookup(self, name: str) -> str | None:
            asked.append(name)
            return None if name.endswith("gone") else name

        async def call(self, ref: str, method: str) -> Any:
            assert method == "gauge"
            if ref.endswith("lost"):
                raise ActorLostError("it restarts")
            return None if ref.endswith("new") else (4, 10)

    stores = [f":queue:{name}" for name in ("full", "gone", "lost", "new")] + [":weights:policy"]
    seen = view(world)._replace(usage={"a": ("worker", {"stores": stores})})
    own = Sampler(world.setup().info, lambda: seen, Queues())  # type: ignore[arg-type] - the two calls that it makes
    task = asyncio.create_task(own.watch_queues())
    await until(lambda: len(asked) > 8)
    task.cancel()
    await own.end()
    own.close()
    assert read(world.folder).queues == {"full": {"items": [4], "capacity": [10]}}
    assert set(asked) == {f"01234567/queue/{name}" for name in ("full", "gone", "lost", "new")}


async def test_segment_that_cannot_be_closed_is_told(world, caplog, monkeypatch):
    def full(_: SampleWriter) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SampleWriter, "close", full)
    own = Sampler(world.setup().info, lambda: view(world), world.backend)
    await own.end()
    own.close()
    assert "No space left on device" in caplog.text
