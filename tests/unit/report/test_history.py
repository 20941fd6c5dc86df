"""The lanes that a journal tells are those that its ledger booked, whatever happened to the job."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from simulated_folder import simulated

from dljob.errors import JournalError
from dljob.master.state import ledger
from dljob.master.state.state import JobState
from dljob.report import history, journal_files
from dljob.report.history import JobHistory, Stretch
from dljob.telemetry.records import Header, encode_header, encode_line
from dljob.testing.simulate.drive import case_of
from dljob.testing.world.fault_schedule import Timed
from dljob.testing.world.model import FaultMove


def read(folder: Path) -> tuple[JobHistory, list[str]]:
    troubles: list[JournalError] = []
    chain = journal_files.parts(folder / "journal", troubles)
    found = history.fold(journal_files.records(chain, history.is_needed, troubles))
    return found, [text for text in (journal_files.older_is_gone(chain), *(each.message for each in troubles)) if text]


def booked(state: JobState) -> dict[tuple[str, str], int]:
    """Return (role, account) -> microseconds by the ledger, without spares, which are no ranks."""
    at = end(state)
    return {
        (role, str(account)): total
        for role in state.job.roles
        for account, total in ledger.totals(state.ledger, role, at).items()
        if account is not ledger.Account.SPARE
    }


def end(state: JobState) -> int:
    return max(state.ledger.at, round(((state.ended_at or 0.0) - state.started_at) * 1e6))


def drawn(found: JobHistory, until: int) -> dict[tuple[str, str], int]:
    sums = Counter[tuple[str, str]]()
    for (role, _), lane in found.lanes.items():
        for own, after in pairwise([*lane, Stretch(until, "")]):
            if own.account:
                sums[role, own.account] += after.at - own.at
    return {key: total for key, total in sums.items() if total}


@pytest.mark.parametrize("seed", [12, 75])
def test_lanes_follow_stalls_that_are_dated_back_and_given_back(tmp_path: Path, seed: int) -> None:
    case = case_of(seed)
    stalls = [Timed(at, FaultMove("stall", pick, pick % 2)) for pick, at in enumerate((8.0, 11.0, 14.0, 22.0, 40.0))]
    faults = tuple(sorted([*case.faults, *stalls], key=lambda timed: timed.at))
    state = simulated(tmp_path / "job", replace(case, faults=faults))
    found, troubles = read(tmp_path / "job")
    assert troubles == []
    assert any(account == "stalled" for _, account in booked(state))
    assert drawn(found, end(state)) == booked(state)


@pytest.mark.parametrize("seed", [9, 12, 27, 75, 103, 134, 284])
def test_lanes_sum_to_the_ledger_exactly(tmp_path: Path, seed: int) -> None:
    state = simulated(tmp_path / "job", case_of(seed), segments=1 + seed % 3)
    found, troubles = read(tmp_path / "job")
    assert troubles == []
    assert drawn(found, end(state)) == booked(state)
    assert {fault.id for fault in state.faults} <= set(found.faults)


def test_every_incident_of_a_recovered_job_has_an_end(tmp_path: Path) -> None:
    state = simulated(tmp_path / "job", case_of(9), segments=3)
    found, _ = read(tmp_path / "job")
    assert found.incidents
    assert sum(own.ended is None for own in found.incidents) <= len(state.incidents)
    assert all(own.members and own.faults for own in found.incidents)


def test_a_closed_segment_is_read_like_a_live_one(tmp_path: Path) -> None:
    simulated(tmp_path / "job", case_of(5), segments=3)
    whole, _ = read(tmp_path / "job")
    folder = tmp_path / "job" / "journal"
    (folder / "closed").mkdir()
    first = folder / "000001.jsonl"
    (folder / "closed" / "000001.jsonl.gz").write_bytes(gzip.compress(first.read_bytes()))
    first.unlink()
    assert read(tmp_path / "job") == (whole, [])


def test_lanes_begin_with_the_oldest_part_kept_which_is_told(tmp_path: Path) -> None:
    state = simulated(tmp_path / "job", case_of(5), segments=3)
    (tmp_path / "job" / "journal" / "000001.jsonl").unlink()
    found, troubles = read(tmp_path / "job")
    assert troubles == ["journal: what is older than part 000002.jsonl is not kept"]
    assert found.lanes.keys() == {key for key, _ in state.ledger.clocks.items()}


def test_damage_in_the_middle_costs_only_the_rest_of_its_segment(tmp_path: Path) -> None:
    simulated(tmp_path / "job", case_of(5), segments=3)
    whole, _ = read(tmp_path / "job")
    part = tmp_path / "job" / "journal" / "000001.jsonl"
    data = part.read_bytes()
    part.write_bytes(data[: len(data) // 2].rpartition(b"\n")[0] + b"x\n" + data[len(data) // 2 :])
    found, troubles = read(tmp_path / "job")
    assert len(troubles) == 1
    assert troubles[0].startswith("journal: part 000001.jsonl: damaged at byte ")
    assert {key: lane[-1] for key, lane in found.lanes.items()} == {key: lane[-1] for key, lane in whole.lanes.items()}


def test_a_part_that_misses_a_line_or_its_end_is_told(tmp_path: Path) -> None:
    simulated(tmp_path / "job", case_of(5), segments=3)
    part = tmp_path / "job" / "journal" / "000001.jsonl"
    lines = part.read_bytes().splitlines(keepends=True)
    part.write_bytes(b"".join(lines[:-1]))
    short = len(b"".join(lines[:-1]))
    told = f"part 000001.jsonl: it ends at byte {short}, and its successor counts on {short + len(lines[-1])} bytes"
    assert read(tmp_path / "job")[1] == [f"journal: {told}"]
    part.write_bytes(b"".join([*lines[:5], *lines[6:]]))
    told = f"part 000001.jsonl: damaged at byte {len(b''.join(lines[:5]))}: line 5 is missing, line 6 follows"
    assert read(tmp_path / "job")[1] == [f"journal: {told}"]


def test_a_closed_part_that_is_cut_short_is_read_up_to_there(tmp_path: Path) -> None:
    simulated(tmp_path / "job", case_of(5), segments=2)
    folder = tmp_path / "job" / "journal"
    (folder / "closed").mkdir()
    data = (folder / "000001.jsonl").read_bytes()
    (folder / "closed" / "000001.jsonl.gz").write_bytes(gzip.compress(data)[:-500])
    (folder / "000001.jsonl").unlink()
    found, (told,) = read(tmp_path / "job")
    assert "000001.jsonl.gz: Compressed file ended" in told
    assert found.started > 0


def test_a_torn_tail_and_a_claim_without_header_are_no_damage(tmp_path: Path) -> None:
    simulated(tmp_path / "job", case_of(5))
    whole, _ = read(tmp_path / "job")
    folder = tmp_path / "job" / "journal"
    with (folder / "000001.jsonl").open("ab") as file:
        file.write(b'{"n":99')
    (folder / "000002.jsonl").write_bytes(b"")
    (folder / "notes.jsonl").write_bytes(b"of another program")
    assert read(tmp_path / "job") == (whole, [])


def test_lines_behind_a_fence_do_not_count(tmp_path: Path) -> None:
    simulated(tmp_path / "job", case_of(5), segments=2)
    whole, _ = read(tmp_path / "job")
    part = tmp_path / "job" / "journal" / "000001.jsonl"
    count = part.read_bytes().count(b"\n")
    late = {"k": "snapshot", "at": 1e10, "of": 1, "i": 0, "d": "{}"}
    part.write_bytes(part.read_bytes() + encode_line(count, late))
    assert read(tmp_path / "job") == (whole, [])


def test_a_fenced_master_without_successor_tells_nothing(tmp_path: Path) -> None:
    simulated(tmp_path / "job", case_of(5), segments=2)
    folder = tmp_path / "job" / "journal"
    whole, _ = read(tmp_path / "job")
    second = (folder / "000002.jsonl").read_bytes()
    # The claim between both lost the race: the newest header leads from 3 to 1.
    (folder / "000002.jsonl").write_bytes(encode_header(Header(2, ("000001", 1), core="lost")))
    (folder / "000003.jsonl").write_bytes(second)
    assert read(tmp_path / "job") == (whole, [])


def test_a_journal_of_a_newer_version_is_refused_in_words(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    (folder / "000001.jsonl").write_bytes(encode_line(0, {"k": "header", "v": 99, "epoch": 1, "prev": None}))
    found, troubles = read(tmp_path)
    assert found.lanes == {}
    assert "version 99" in troubles[0]


HOST = {"role": "a", "index": 0}


def state_of(**fields: Any) -> dict[str, Any]:
    """Return a state of one role of two ranks, each on a host of its own."""
    hosts = [[{"role": "a", "index": i}, {"node": f"n{i}"}] for i in (0, 1)]
    ranks = [[["a", i], {"phase": "Ready"}] for i in (0, 1)]
    clocks = [[["a", i], ["productive", 0]] for i in (0, 1)]
    whole = {"started_at": 5.0, "hosts": hosts, "ranks": ranks, "units": [], "nodes": [], "faults": [],
             "incidents": [], "ledger": {"clocks": clocks}}  # fmt: skip
    return {**whole, **fields}


def snapshot(at: float, **fields: Any) -> dict[str, Any]:
    return {"k": "snapshot", "at": at, "of": 1, "i": 0, "d": json.dumps(state_of(**fields))}


def change(at: float, **fields: Any) -> dict[str, Any]:
    return {"k": "change", "at": at, "d": ["d", fields], "notes": []}


def moved(at: float, *ranks: int) -> dict[str, Any]:
    us = round((at - 5.0) * 1e6)
    clocks = [[["a", rank], ["v", ["replace", us]]] for rank in ranks]
    return change(at, ledger=["d", {"clocks": ["m", clocks, []]}])


def event(at: float, name: str, **fields: Any) -> dict[str, Any]:
    return {"k": "event", "at": at, "e": {"t": name, **fields}}


def test_a_snapshot_of_many_records_counts_only_when_it_is_whole() -> None:
    text = json.dumps(state_of())
    head = {"k": "snapshot", "at": 6.0, "of": 2}
    parts = [{**head, "i": 0, "d": text[:50]}, {**head, "i": 1, "d": text[50:]}]
    assert history.fold(parts[:1]).lanes == {}
    assert history.fold([parts[0], *parts]).lanes[("a", 0)] == [Stretch(0, "productive")]


@pytest.mark.parametrize(
    ("told", "lost"),
    [
        (
            event(9.0, "HostLost", host=HOST, outcome={"reason": "Unknown"}, seen=8.0),
            {0: 3_000_000},
        ),
        (
            event(9.0, "HostLost", host=HOST, outcome={"reason": "NodeLost"}, seen=8.0),
            {0: 3_000_000},
        ),
        (event(9.0, "HostLost", host=HOST, outcome={"reason": "Unknown"}, seen=None), {}),
        (event(9.0, "NodeFrozen", node="n1", silent_s=2.0), {1: 2_000_000}),
        (event(9.0, "NodesSeen", nodes=[], silent=[["n0", 6.0]]), {0: 1_000_000}),
        (event(9.0, "HangFound", role="a", rank=1, whole=False, silent_s=3.0), {1: 1_000_000}),
        (event(9.0, "HangFound", role="a", rank=1, whole=True, silent_s=3.0), {0: 1_000_000, 1: 1_000_000}),
    ],
)
def test_the_last_sign_of_life_begins_the_time_of_detection(told: dict[str, Any], lost: dict[int, int]) -> None:
    found = history.fold([snapshot(5.0), told, moved(9.0, 0, 1)])
    for rank in (0, 1):
        detect = [Stretch(lost[rank], "detect")] if rank in lost else []
        assert found.lanes[("a", rank)] == [Stretch(0, "productive"), *detect, Stretch(4_000_000, "replace")]


def test_a_rank_without_a_process_is_not_lost_again() -> None:
    gone = change(6.0, ranks=["m", [[["a", 0], ["d", {"phase": ["v", "Waiting"]}]]], []])
    told = event(9.0, "NodesSeen", nodes=[], silent=[["n0", 6.0]])
    found = history.fold([snapshot(5.0), gone, told, moved(9.0, 0)])
    assert [own.account for own in found.lanes["a", 0]] == ["productive", "replace"]


def test_a_rank_that_its_role_drops_leaves_its_lane() -> None:
    dropped = change(7.0, ledger=["d", {"at": ["v", 2_000_000], "clocks": ["m", [], [["a", 1]]]}])
    found = history.fold([snapshot(5.0), dropped, change(8.0, ledger=["d", {"productive": ["d", {}]}])])
    assert found.lanes["a", 1] == [Stretch(0, "productive"), Stretch(2_000_000, "")]


def test_an_incident_grows_and_ends_and_one_behind_a_gap_ends_with_it() -> None:
    row = {"detected_at": 6.0, "role": "a", "members": [["a", 0]], "fault_numbers": [1]}
    grown = ["d", {"fault_numbers": ["s", 1, 0, [2]], "members": ["s", 1, 0, [["a", 1]]]}]
    records = [
        snapshot(5.0),
        change(6.0, incidents=["m", [[1, ["v", row]]], []]),
        change(7.0, incidents=["m", [[1, grown]], []]),
        change(8.0, incidents=["m", [[2, ["v", row]]], [1]]),
        snapshot(20.0),
    ]
    first, second = history.fold(records).incidents
    assert (first.ended, first.members, first.faults) == (8.0, [("a", 0), ("a", 1)], [1, 2])
    assert second.ended == 20.0


def test_a_clock_that_went_back_leaves_lanes_in_order() -> None:
    found = history.fold([snapshot(5.0), moved(9.0, 0), moved(8.0, 0)])
    assert found.lanes["a", 0] == [Stretch(0, "productive"), Stretch(4_000_000, "replace")]
