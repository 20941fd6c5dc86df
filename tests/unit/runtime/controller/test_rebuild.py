"""A journal that other code wrote: its state goes on as it was written; what cannot be read begins anew, counted on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import a_saver, client, place
from master_shell_kit import FIRST, World, end_all, ended, running, until
from memory_backend import MemoryHost

from dljob.api.next_attempt import newest_step
from dljob.master.state import events as ev
from dljob.master.state.state import Phase
from dljob.master.state.views import Outcome
from dljob.runtime.controller import master_loop as shell_module
from dljob.runtime.controller import rebuild as module
from dljob.runtime.controller.master_loop import MasterLoop
from dljob.runtime.controller.rebuild import Rebuilding
from dljob.runtime.journal.code_version import code_version, named
from dljob.runtime.journal.journal import Replay
from dljob.runtime.journal.timeline import KEPT, Timeline
from dljob.telemetry import reasons
from dljob.telemetry.records import encode_line, scan

Record = dict[str, Any]


async def killed_once(world: World) -> MasterLoop:
    """A master of 0.1.0 a, whose first rank was killed, and which is gone."""
    shell = world.master()
    await until(running(shell))
    await world.backend.kill(await world.backend.lookup(FIRST))
    await until(lambda: shell.state.restarts.get("Process") == 1 and shell.state.phase is Phase.RUNNING)
    shell.journal.since_snapshot = shell_module.SNAPSHOT_EVERY
    await shell.offer(ev.Tick())  # whose turn ends with a snapshot
    await shell.offer(ev.Commanded("seen", "restart", "nobody/7"))
    await world.die()
    world.core = "0.2.0 b"
    return shell


def edit(world: World, change: Callable[[Record], object], extra: tuple[Record, ...] = ()) -> None:
    """Another hand in the last segment: `change` may alter a record; `extra` come behind it."""
    path = max((world.folder / "journal").glob("*.jsonl"))
    read = scan(path.read_bytes())
    assert read.header is not None
    records = [read.header.record(), *read.records, *extra]
    lines: list[bytes] = []
    for number, record in enumerate(records):
        change(own := json.loads(json.dumps(record)))
        lines.append(encode_line(number, own))
    path.write_bytes(b"".join(lines))


def in_states(alter: Callable[[Record], object]) -> Callable[[Record], object]:
    """Alter the state of each snapshot; they are of one part here."""

    def change(record: Record) -> None:
        if record["k"] == "snapshot":
            state = json.loads(record["d"])
            alter(state)
            record["d"] = json.dumps(state)

    return change


def rows(state: Record, table: str) -> list[Record]:
    return [row[1] for row in state[table]]


def notes(shell: MasterLoop, reason: str) -> list[str]:
    return [note["message"] for note in shell.timeline.after(0) if note["reason"] == reason]


# -- taken over


async def test_other_code_takes_the_state_as_it_was_written(world, monkeypatch):
    """It may fold events otherwise; so it folds none."""
    before = await killed_once(world)
    with monkeypatch.context() as patch:
        patch.setattr(module, "transition", None)
        shell = world.master()
        await until(lambda: shell.recovered)
    kept = ("ranks", "hosts", "units", "commands", "seats", "nodes", "sizes", "memory_overrides", "last_errors")
    assert [name for name in kept if getattr(shell.state, name) != getattr(before.state, name)] == []
    assert dict(shell.state.restarts) == {"Process": 1, "Master": 1}
    assert {**before.state.marks, "master": shell.state.marks["master"]} == dict(shell.state.marks)
    assert sum(call.startswith("spawn 01234567/worker") for call in world.backend.calls) == 3
    (said,) = notes(shell, reasons.JOURNAL_TAKEN_OVER)
    assert said == ("the journal is of dljob 0.1.0 a, this is dljob 0.2.0 b: its state goes on as it was written")
    seqs = [note["seq"] for note in shell.timeline.after(0)]
    assert seqs == list(range(1, len(seqs) + 1))
    end_all(world)
    assert (await ended(world))["phase"] == "Succeeded"


def bytes_read() -> int:
    """Bytes that this process has read so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_of_a_million_events_a_start_reads_those_that_it_keeps(world):
    file, seq = world.folder / "events.jsonl", 40_000
    line = '{{"seq": {}, "time": 1.0, "reason": "Restarting", "target": "w/0", "message": "' + 100 * "x" + '"}}\n'
    file.write_text("".join(line.format(number) for number in range(1, 50_001)))
    before = bytes_read()
    timeline = Timeline(world.folder)
    replay = Replay(2, ({"k": "notes", "seq": seq},), frozenset({"a"}), "a")
    Rebuilding(world.setup(), timeline).rebuild(replay)
    timeline.read_again()
    assert [note["seq"] for note in timeline.after(0)] == list(range(seq - KEPT + 1, seq + 1))
    assert bytes_read() - before < file.stat().st_size / 5
    timeline.close()


async def test_a_masters_own_journal_is_replayed(world):
    await killed_once(world)
    world.core = "0.1.0 a"
    shell = world.master()
    await until(lambda: shell.recovered)
    assert notes(shell, reasons.JOURNAL_TAKEN_OVER) == []
    end_all(world)
    assert (await ended(world))["restarts"]["process"] == 1


async def test_the_last_step_of_a_rank_that_ended_is_known_to_other_code(world, shell):
    world.host().report(0, 1, Outcome(ok=True, result="7", step=3))
    await until(lambda: shell.status()["progress"]["step"] == 3)
    await world.die()
    world.core = "0.2.0 b"
    second = world.master()
    await until(lambda: second.recovered)
    assert second.status()["progress"]["step"] == 3


async def test_events_whose_change_was_cut_off_are_folded(world):
    """Nobody acted upon them, and nobody was answered."""
    await killed_once(world)
    edit(
        world,
        lambda _: None,
        ({"k": "event", "at": 1e9, "e": {"t": "Commanded", "id": "c", "kind": "restart", "target": "no/1"}},),
    )
    shell = world.master()
    await until(lambda: shell.recovered)
    assert set(shell.state.commands) == {"seen", "c"}
    assert len(notes(shell, reasons.COMMAND_REFUSED)) == 2


async def test_fields_of_a_newer_version_are_left_out_and_named(world):
    await killed_once(world)

    def newer(state: Record) -> None:
        state["omens"] = [["a", 1]]
        for own in rows(state, "ranks"):
            own["mood"] = "good"

    more = (
        {"k": "weather", "at": 1e9, "sun": True},
        {"k": "event", "at": 1e9, "e": {"t": "Earthquake", "size": 7}},
        {"k": "event", "at": 1e9, "e": {"t": "Tick", "tock": 1}},
        {"k": "event", "at": 1e9, "e": {"t": "UnitRefused", "unit": 1, "token": 1, "why": ""}},
    )
    edit(world, in_states(newer), more)
    shell = world.master()
    await until(lambda: shell.recovered)
    (said,) = notes(shell, reasons.JOURNAL_TAKEN_OVER)
    left = "omens, ranks.mood, unknown event 'Earthquake', event 'UnitRefused': unit is 1, which is no str"
    assert said.endswith(f"its state goes on as it was written; left out, as this version cannot read it: {left}")
    assert sorted(own.incarnation for own in shell.state.ranks.values()) == [1, 2]


async def test_a_journal_from_before_the_first_release_is_refused_and_left_as_it_is(world):
    """The job's checkpoints stay, too, and the next attempt finds them."""
    await killed_once(world)
    edit(world, lambda record: record.update(v=1) if record["k"] == "header" else None)
    with a_saver() as (saver, _):
        rank = client(place(saver, world.folder / "checkpoints" / "worker"))
        rank.save(10, {"step": 10}, persist=True)
        rank.close()
    written = {path: path.read_bytes() for path in (world.folder / "journal").iterdir()}
    world.master()
    status = await ended(world)
    assert (status["phase"], status["reason"]) == ("Failed", "JournalFailed")
    assert "from before 0.1.0 wrote it, in version 1 of the journal; this one reads version 3" in status["message"]
    assert {path: path.read_bytes() for path in (world.folder / "journal").iterdir()} == written
    assert newest_step(world.folder) == 10


async def test_fields_an_older_version_lacked_get_their_defaults(world):
    await killed_once(world)

    def older(state: Record) -> None:
        del state["memory_overrides"], state["sizes"]
        for own in rows(state, "hosts"):
            del own["previous_actor"]

    edit(world, in_states(older))
    shell = world.master()
    await until(lambda: shell.recovered)
    assert len(notes(shell, reasons.JOURNAL_TAKEN_OVER)) == 1


# -- begun anew


def levitating(state: Record) -> None:
    rows(state, "ranks")[0]["phase"] = "Levitating"


UNREADABLE: Mapping[str, tuple[Callable[[Record], object], str]] = {
    "a phase": (in_states(levitating), "'Levitating' is not a valid RankPhase"),
    "a type": (
        in_states(lambda s: rows(s, "units")[0].update(token="first")),
        "units.token is 'first', which is no int",
    ),
    "a shape": (in_states(lambda s: s.update(nodes=7)), "nodes is no list"),
    "a table": (in_states(lambda s: s.update(search=[])), "search is no object"),
    "a key": (in_states(lambda s: s["ranks"][0].append(1)), "ranks has 3 parts, and not 2"),
    "a rank": (in_states(lambda s: s["ranks"].pop()), "ranks lacks ('worker', 1)"),
    "a field": (in_states(lambda s: s.pop("phase")), "phase"),
    "a version": (in_states(lambda s: s.update(v=4)), "a snapshot of version 4; this dljob reads version 3"),
    "a plan": (lambda r: r.update(plan="0" * 16) if "plan" in r else None, "it belongs to plan 0000000000000000"),
    "a change": (
        lambda r: r.update(d=["z"]) if r["k"] == "change" else None,
        "a change does not fit the state before it",
    ),
    "a line": (lambda r: r.pop("d") if r["k"] == "change" else None, "record 'change': 'd'"),
}


@pytest.mark.parametrize("case", UNREADABLE)
async def test_an_unreadable_journal_begins_the_job_anew_with_its_counts(world, case):
    before = await killed_once(world)
    old = set(world.backend.hosts)
    alter, words = UNREADABLE[case]
    edit(world, alter)
    shell = world.master()
    await until(lambda: shell.recovered)
    (said,) = notes(shell, reasons.JOURNAL_NOT_TAKEN_OVER)
    assert words in said
    assert "all ranks start again from their last checkpoints" in said
    await until(running(shell))
    ranks = {name for name in world.backend.hosts if "/worker/" in name}
    assert ranks == {"01234567/worker/0/3", "01234567/worker/1/3"}, "nobody has a number that was used"
    assert not ranks & old
    assert [own.incarnation for own in shell.state.ranks.values()] == [3, 3]
    assert dict(shell.state.restarts) == {"Process": 1, "Master": 1, "Job": 1}
    commands = {} if case in ("a change", "a line") else dict(before.state.commands)  # it was told in that change
    assert dict(shell.state.commands) == commands
    assert shell.state.started_at == before.state.started_at
    end_all(world)
    status = await ended(world)
    assert (status["phase"], status["restarts"]["job"]) == ("Succeeded", 1)


async def test_a_job_that_begins_anew_is_recovering_until_all_are_ready(world):
    await killed_once(world)
    edit(world, in_states(levitating))
    start, gate = MemoryHost.start, []

    async def waits(host: MemoryHost, order: Any) -> None:
        await until(lambda: gate)
        await start(host, order)

    try:
        MemoryHost.start = waits  # type: ignore[method-assign]
        shell = world.master()
        await until(lambda: shell.state.phase is Phase.RECOVERING)
        gate.append(1)
        await until(running(shell))
    finally:
        MemoryHost.start = start  # type: ignore[method-assign]


async def test_malformed_parts_of_the_state_are_left_out_and_the_rest_goes_on(world):
    """The ledger, the restarts by role, a budget: each as far as it can be read."""
    await killed_once(world)

    def spoil(state: Record) -> None:
        levitating(state)
        state.update(ledger=[], marks=3, roles=[["worker"], ["gone", {"restarts": 1}], 5], verdict=7)

    edit(world, in_states(spoil))
    shell = world.master()
    await until(running(shell))
    (said,) = notes(shell, reasons.JOURNAL_NOT_TAKEN_OVER)
    assert said.endswith("left out, as this version cannot read it: marks")
    end_all(world)
    assert (await ended(world))["phase"] == "Succeeded"


async def test_a_state_that_breaks_on_the_next_event_begins_anew(world, monkeypatch):
    await killed_once(world)
    edit(world, lambda _: None, ({"k": "event", "at": 1e9, "e": {"t": "Tick"}},))

    def breaks(*_: object) -> None:
        raise ZeroDivisionError("no such thing")

    monkeypatch.setattr(module, "transition", breaks)
    shell = world.master()
    await until(lambda: shell.recovered)
    assert "Tick breaks it: ZeroDivisionError('no such thing')" in notes(shell, reasons.JOURNAL_NOT_TAKEN_OVER)[0]
    assert dict(shell.state.restarts) == {"Process": 1, "Master": 1, "Job": 1}


@pytest.mark.parametrize("phase", ["Stopping", "Succeeded", "Ascending"])
async def test_a_job_that_was_ending_ends_as_it_was_to(world, phase):
    await killed_once(world)

    def ending(state: Record) -> None:
        levitating(state)
        verdict = {"ok": True, "reason": "Completed", "message": "all is well", "at": 5.0, "release_at": None}
        state.update(phase=phase, verdict=verdict)

    edit(world, lambda record: record.pop("d") if record["k"] == "change" else in_states(ending)(record))
    spawned = len([call for call in world.backend.calls if call.startswith("spawn")])
    world.master()
    status = await ended(world)
    assert (status["phase"], status["reason"], status["restarts"]["job"]) == ("Succeeded", "Completed", 0)
    assert spawned == len([call for call in world.backend.calls if call.startswith("spawn")])


# -- who wrote it


def test_the_core_is_named_by_its_sources(tmp_path):
    root = Path(module.__file__).parents[2]
    for package in ("master", "plan", "spec", "telemetry", "cli"):
        shutil.copytree(root / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    assert named(tmp_path) == code_version()
    (tmp_path / "cli/main.py").write_text("")
    assert named(tmp_path) == code_version()
    with (tmp_path / "master/state/limits.py").open("a") as file:
        file.write("# another number\n")
    assert named(tmp_path) != code_version()
    assert named(tmp_path).split()[0] == code_version().split()[0]


def test_without_sources_or_metadata_the_core_has_what_is_there(tmp_path, monkeypatch):
    from importlib import metadata

    assert named(tmp_path) == code_version().split()[0]

    def none(_: str) -> str:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", none)
    assert named(tmp_path) == "unknown"
