"""The files of a job's samples: written by one, read by many meanwhile, damaged, and bounded."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from dljob.runtime.journal import sample_rows, samples
from dljob.runtime.journal.sample_rows import SampleRow
from dljob.runtime.journal.samples import FOLDER, SampleWriter, compact, last_columns, read


def columns(step: int, ranks: int = 2) -> dict[str, Any]:
    return {"steps/w": [step] * ranks, "accounts/w": "p" * ranks, "progress/loss": 1 / (step + 1)}


def write(folder: Path, times: range, *, close: bool = True) -> SampleWriter:
    writer = SampleWriter(folder)
    for at in times:
        writer.append(SampleRow(float(at), columns(at)))
    if close:
        writer.close()
    return writer


def no_segment(_: Path) -> dict[int, Path]:
    return {}


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / FOLDER).iterdir())


def test_samples_are_read_while_they_are_written(tmp_path):
    write(tmp_path, range(10, 13), close=False)
    found = read(tmp_path)
    assert found.times == [10, 11, 12]
    assert found.steps == {"w": [[10, 11, 12], [10, 11, 12]]}
    assert found.accounts == {"w": ["pp", "pp", "pp"]}
    assert found.progress == {"loss": [1 / 11, 1 / 12, 1 / 13]}
    assert found.unrecorded == ()
    said = found.data()
    assert (said["times"], said["steps"], said["weights"]) == (found.times, found.steps, {})
    assert "unrecorded" not in said


def test_usage_of_ranks_is_read_by_name_and_rank(tmp_path):
    writer = SampleWriter(tmp_path)
    writer.append(SampleRow(1.0, {"memory/w": [3, None], "device/w": [1, 2], "calls/a>w.run": [4, 1, 0, 0, 2, 60]}))
    later = {"queues/a/b": [7, 10], "published/p": 6, "held/w/p": [5, None], "held/v/odd/name": [1]}
    later |= {"peak/w": [5, None], "cpu/w": [100, 2], "saves/w": [1, None], "saving/w": [40, None]}
    later |= {"calls/a>w.run": [9, 0, 1, 2, 0, 90]}
    writer.append(SampleRow(2.0, {"memory/w": [4, None], "device/w": [1, 2], **later}))
    found = read(tmp_path)
    assert found.memory == {"w": [[3 << 20, 4 << 20], [None, None]]}
    assert found.device == {"w": [[1 << 20, 1 << 20], [2 << 20, 2 << 20]]}
    assert found.peak == {"w": [[None, 5 << 20], [None, None]]}
    assert (found.cpu, found.saves) == ({"w": [[None, 100], [None, 2]]}, {"w": [[None, 1], [None, None]]})
    assert found.saving == {"w": [[None, 40], [None, None]]}
    counts = {"sent": [4, 9], "parked": [1, 0], "again": [0, 1], "lost": [0, 2], "underWay": [2, 0], "tookMs": [60, 90]}
    assert found.calls == {"a>w.run": counts}
    assert found.queues == {"a/b": {"items": [None, 7], "capacity": [None, 10]}}
    assert found.weights["p"] == {"published": [None, 6], "held": {"w": [[None, 5], [None, None]]}}
    assert found.weights["odd/name"] == {"published": [None, None], "held": {"v": [[None, 1]]}}


def test_next_master_goes_on_in_a_segment_of_its_own(tmp_path):
    write(tmp_path, range(1, 3), close=False)
    write(tmp_path, range(3, 5))
    assert files(tmp_path) == ["000001-000001.1.2.2.z", "000002-000002.1.2.4.z"]
    write(tmp_path, range(5, 6))
    assert read(tmp_path).times == [1, 2, 3, 4, 5]


def test_two_masters_never_share_a_segment(tmp_path):
    (tmp_path / FOLDER).mkdir()
    fenced, present = SampleWriter(tmp_path), SampleWriter(tmp_path)
    for at in (1.0, 2.0):
        fenced.append(SampleRow(at, columns(1)))
        present.append(SampleRow(at + 0.5, columns(2)))
    assert files(tmp_path) == ["000001.jsonl", "000002.jsonl"]
    assert read(tmp_path).times == [1, 2, 2.5]  # in order, whichever wrote them


def test_segment_that_another_master_takes_first_is_left_to_it(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "listed", no_segment)
    write(tmp_path, range(1, 2), close=False)
    write(tmp_path, range(2, 3), close=False)
    assert files(tmp_path) == ["000001.jsonl", "000002.jsonl"]


def test_full_segment_is_closed_and_compressed(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "OPEN_ROWS", 3)
    write(tmp_path, range(1, 5), close=False)
    assert files(tmp_path) == ["000001-000001.1.3.3.z", "000002.jsonl"]
    assert read(tmp_path).times == [1, 2, 3, 4]


def test_clock_that_went_back_adds_no_rows(tmp_path):
    writer = write(tmp_path, range(10, 12), close=False)
    writer.append(SampleRow(5.0, columns(1)))
    writer.append(SampleRow(11.0, columns(1)))
    assert read(tmp_path).times == [10, 11]
    write(tmp_path, range(8, 14))  # a new master with a clock behind
    assert read(tmp_path).times == [10, 11, 12, 13]


def test_last_line_that_was_cut_off_is_left_out(tmp_path):
    write(tmp_path, range(1, 4), close=False)
    path = tmp_path / FOLDER / "000001.jsonl"
    os.truncate(path, path.stat().st_size - 4)
    assert read(tmp_path).times == [1, 2]
    assert read(tmp_path).unrecorded == ()
    write(tmp_path, range(4, 6))
    assert read(tmp_path).times == [1, 2, 4, 5]


def test_damaged_segment_is_told_and_the_others_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "OPEN_ROWS", 100)
    write(tmp_path, range(1, 301))
    path = sorted((tmp_path / FOLDER).iterdir())[1]
    path.write_bytes(path.read_bytes()[:-40])
    found = read(tmp_path)
    assert found.times[:100] == list(range(1, 101))
    assert found.times[-100:] == list(range(201, 301))
    (said,) = found.unrecorded
    assert said.startswith(f"samples: {path.name}: ")
    path.write_bytes(b"nonsense")
    assert len(read(tmp_path).times) == 200


def test_bytes_behind_a_segment_cost_no_time_and_are_told(tmp_path):
    write(tmp_path, range(1, 4))
    (path,) = (tmp_path / FOLDER).iterdir()
    for size in (path.stat().st_size + 1, 2**40):  # sparse: no machine could read so much
        os.truncate(path, size)
        found = read(tmp_path)
        assert found.times == [1, 2, 3]
        assert found.unrecorded == (f"samples: {path.name}: damaged behind the end of its rows, which are all read",)


def test_job_without_samples_says_that_there_are_none(tmp_path):
    found = read(tmp_path)
    assert found.times == []
    assert "none were recorded" in found.unrecorded[0]
    (tmp_path / FOLDER).mkdir()
    assert read(tmp_path).times == []
    assert read(tmp_path, most=5).unrecorded == ()


def test_number_of_points_is_bounded_evenly(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "OPEN_ROWS", 100)
    write(tmp_path, range(1000, 1251), close=False)
    found = read(tmp_path, most=10)
    assert 9 <= len(found.times) <= 10
    assert found.times[-1] == 1250
    assert {round(b - a) for a, b in zip(found.times, found.times[1:], strict=False)} <= {24, 25, 26}
    assert [len(ranks) for ranks in found.steps["w"]] == [len(found.times)] * 2
    assert len(read(tmp_path, most=1).times) == 1
    assert len(read(tmp_path, most=10**6).times) == 251


def test_role_that_grows_or_begins_late_has_none_before(tmp_path):
    writer = SampleWriter(tmp_path)
    for at, now in enumerate(({}, {"steps/w": [1]}, {"steps/w": [2, 9]}), 1):
        writer.append(SampleRow(float(at), {"accounts/w": "p", "later/x": 1, **now}))
    assert read(tmp_path).steps == {"w": [[None, 1, 2], [None, None, 9]]}


def test_reader_begins_again_when_a_segment_is_replaced(tmp_path, monkeypatch):
    write(tmp_path, range(1, 4), close=False)
    listed, turns = samples.listed, [{9: tmp_path / FOLDER / "000009.jsonl"}]

    def stale(folder: Path) -> dict[int, Path]:
        return turns.pop() if turns else listed(folder)

    monkeypatch.setattr(samples, "listed", stale)
    assert read(tmp_path).times == [1, 2, 3]
    turns += [{9: tmp_path / FOLDER / "000009.jsonl"}] * samples.TRIES * 2
    assert "change faster" in read(tmp_path).unrecorded[0]


def test_merge_that_was_cut_off_leaves_no_row_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "OPEN_ROWS", 100)
    write(tmp_path, range(1, 1001))
    own = tmp_path / FOLDER
    before = {path.name: path.read_bytes() for path in own.iterdir()}
    monkeypatch.setattr(sample_rows, "ROWS", 40)
    compact(own, 1000.0 + 4000, 10**9)
    merged = files(tmp_path)
    assert [name for name in merged if ".10." in name]
    thin = read(tmp_path).times
    for name, content in before.items():
        (own / name).write_bytes(content)
    (own / ".part.7").write_bytes(b"x")
    assert read(tmp_path).times == thin
    compact(own, 1000.0 + 4000, 10**9)
    assert files(tmp_path) == merged
    assert read(tmp_path).times == thin
    assert thin[-1] == 1000
    assert len(thin) == 282


def test_write_that_fails_ends_the_segment_alone(tmp_path, monkeypatch):
    writer = write(tmp_path, range(1, 3), close=False)
    with (tmp_path / FOLDER / "000001.jsonl").open("a") as file:
        file.write('{"t":3.')
    monkeypatch.setattr(writer, "_path", Path("/dev/full"))
    with pytest.raises(OSError, match="No space"):
        writer.append(SampleRow(3.0, columns(3)))
    writer.append(SampleRow(4.0, columns(4)))
    assert read(tmp_path).times == [1, 2, 4]
    assert read(tmp_path).unrecorded == ()


def test_size_of_a_long_job_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "OPEN_ROWS", 50)
    monkeypatch.setattr(samples, "OPEN_BYTES", 4000)
    monkeypatch.setattr(samples, "SPARE", 5000)
    draw = random.Random(1)  # noqa: S311 - no secret
    writer, steps, most = SampleWriter(tmp_path, 40_000), [0] * 50, 0
    for at in range(1, 5001):
        steps = [step + draw.randrange(9) for step in steps]
        writer.append(SampleRow(float(at), {"steps/w": steps}))
        if at % 50 == 0:
            most = max(most, sum(path.stat().st_size for path in (tmp_path / FOLDER).iterdir()))
    assert most <= 40_000
    found = read(tmp_path)
    assert found.times[0] < 50
    assert found.times[-1] == 5000
    assert len(found.times) > 200
    first = [step or 0 for step in found.steps["w"][0]]
    assert first == sorted(first)


def test_file_that_is_removed_during_a_listing_is_passed_over(tmp_path):
    write(tmp_path, range(1, 3))
    (tmp_path / FOLDER / "000002-000002.1.1.3.z").symlink_to(tmp_path / "gone")
    assert read(tmp_path).times == [1, 2]


def test_segment_without_a_row_leaves_no_file(tmp_path):
    own = tmp_path / FOLDER
    own.mkdir()
    (own / "000004.jsonl").touch()
    compact(own, 1.0, 10**9)
    assert files(tmp_path) == []


def test_segment_that_was_closed_and_not_removed_is_read_once(tmp_path):
    write(tmp_path, range(1, 4), close=False)
    left = (tmp_path / FOLDER / "000001.jsonl").read_bytes()
    write(tmp_path, range(4, 6))
    (tmp_path / FOLDER / "000001.jsonl").write_bytes(left + b"damaged\n")
    assert read(tmp_path).times == [1, 2, 3, 4, 5]
    assert read(tmp_path).unrecorded == ()


def test_folder_that_cannot_be_listed_has_no_samples(tmp_path):
    compact(tmp_path / "nowhere", 1.0, 10**9)
    assert list(tmp_path.iterdir()) == []


def test_last_columns_are_those_of_the_last_row_of_any_segment(tmp_path):
    assert last_columns(tmp_path) == {}
    writer = SampleWriter(tmp_path)
    writer.append(SampleRow(1.0, {"steps/w": [1]}))
    writer.append(SampleRow(2.0, {"steps/w": [2]}))
    assert last_columns(tmp_path) == {"steps/w": [2]}
    writer.close()
    assert last_columns(tmp_path) == {"steps/w": [2]}
    # A later segment without a row says nothing.
    (tmp_path / "samples" / "000009.jsonl").touch()
    assert last_columns(tmp_path) == {"steps/w": [2]}
    for path in (tmp_path / "samples").iterdir():
        path.write_bytes(b"")
    assert last_columns(tmp_path) == {}
