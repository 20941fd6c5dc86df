"""A job's past by its journal: equal to what PrimeMaster wrote, at every event, from any part, by any version."""

from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path

import pytest
from past_kit import WORKERS, PastJob, check_past, encoded, past_of

from dljob.errors import JournalError, NotFoundError, UsageError
from dljob.master.persistence import codec
from dljob.report.replay import Past, states
from dljob.report.replay_views import difference
from dljob.telemetry.records import Header, encode_header
from dljob.testing.simulate.drive import Case
from dljob.testing.world.fault_schedule import Timed
from dljob.testing.world.model import FaultMove

FAULTS = (*(Timed(20.0 * n, FaultMove("kill", n)) for n in range(1, 6)), Timed(150.0, FaultMove("crash")))
CASE = Case(3, WORKERS, FAULTS)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> PastJob:
    return past_of(tmp_path_factory.mktemp("past") / "job", CASE, every=5, closed=2)


def copied(job: PastJob, to: Path) -> Path:
    """A copy of the job's folder that a test may damage."""
    folder = to / "copy"
    for path in (path for path in job.folder.rglob("*") if path.is_file()):
        target = folder / path.relative_to(job.folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return folder


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "journal").glob("*.jsonl"))


def test_each_state_equals_that_of_the_master_byte_for_byte(job: PastJob) -> None:
    found = [(encoded(state), at, seq) for seq, at, state, _ in states(job.folder)]
    assert found == list(zip(job.states, job.times, job.seqs, strict=True))
    assert len(Past(job.folder).parts) > 4


def test_folded_events_and_laid_changes_lead_to_the_same_states(job: PastJob) -> None:
    assert set(check_past(job.folder)) <= set(job.states)


def test_each_snapshot_equals_the_state_that_its_part_is_folded_to(job: PastJob) -> None:
    written = set(job.states)
    texts = [
        json.loads(line)["r"]["d"]
        for path in segments(job.folder)
        for line in path.read_bytes().splitlines()
        if json.loads(line)["r"]["k"] == "snapshot"
    ]
    assert len(texts) > 2
    assert written.issuperset(texts)


def test_a_moment_is_the_last_event_up_to_its_time_from_the_nearest_snapshot(job: PastJob) -> None:
    past = Past(job.folder)
    for index in range(0, len(job.times), 5):
        last = max(n for n, at in enumerate(job.times) if at <= job.times[index])
        found = past.at(job.times[index] + (0.0 if last + 1 == len(job.times) else 1e-7))
        assert (encoded(found.state), found.at) == (job.states[last], job.times[last])


def test_an_event_of_the_timeline_leads_to_the_first_state_with_it(job: PastJob) -> None:
    past = Past(job.folder)
    for seq in range(1, job.seqs[-1] + 1):
        index = next(n for n, own in enumerate(job.seqs) if own >= seq)
        found = past.behind(seq)
        assert (encoded(found.state), found.seq) == (job.states[index], job.seqs[index])
        assert found.notes
    assert encoded(past.last().state) == job.states[-1]


def test_a_folder_of_another_version_replays_by_its_changes(job: PastJob, tmp_path: Path) -> None:
    other = past_of(tmp_path / "other", CASE, core="9.9.9 f00f00f00f00", every=5, closed=2)
    past = Past(other.folder)
    assert past.foreign
    assert past.cores == ["9.9.9 f00f00f00f00"]
    found = [(encoded(each.state), each.at, each.seq) for each in past.states()]
    # One moment for each batch of events, since another version would decide otherwise between them.
    assert set(found) <= set(zip(job.states, job.times, job.seqs, strict=True))
    assert [at for _, at, _ in found[1:]] == sorted(set(job.times[1:]))
    assert encoded(past.behind(3).state) == encoded(Past(job.folder).behind(3).state)


def test_a_state_that_this_version_cannot_read_is_told_with_the_version_to_use(tmp_path: Path) -> None:
    other = past_of(tmp_path / "other", CASE, core="9.9.9 f00f00f00f00", every=10**6)
    (path,) = segments(other.folder)[:1]
    assert b'\\"phase\\":\\"Pending\\"' in path.read_bytes()
    rewrite(path, '"phase":"Pending"', '"phase":"Dreaming"')
    with pytest.raises(JournalError, match="Dreaming"):
        _ = Past(other.folder).oldest.state


def rewrite(path: Path, old: str, new: str) -> None:
    """Replace a text in the snapshots of a segment, with right checksums."""
    from dljob.telemetry.records import encode_line

    records = [json.loads(line)["r"] for line in path.read_bytes().splitlines()]
    for record in records:
        if record["k"] == "snapshot":
            record["d"] = record["d"].replace(old, new)
    path.write_bytes(b"".join(encode_line(number, record) for number, record in enumerate(records)))


def test_a_time_outside_of_what_is_kept_is_refused_with_the_range(job: PastJob, tmp_path: Path) -> None:
    past = Past(job.folder)
    with pytest.raises(UsageError, match="is before the oldest moment kept") as before:
        past.at(job.times[0] - 1)
    assert "the job began then" in before.value.hint
    with pytest.raises(UsageError, match="is after the last moment recorded"):
        past.at(job.times[-1] + 1)
    with pytest.raises(UsageError, match=f"the last one is {job.seqs[-1]}"):
        past.behind(10_000)
    with pytest.raises(UsageError, match="is before the oldest one kept, 1"):
        past.behind(0)
    folder = copied(job, tmp_path)
    for path in (folder / "journal" / "closed").iterdir():
        path.unlink()
    cut = Past(folder)
    assert cut.cut
    with pytest.raises(UsageError, match="is before the oldest moment kept") as dropped:
        cut.at(job.times[0])
    assert "the parts before it were dropped" in dropped.value.hint
    assert encoded(cut.oldest.state) in job.states


def test_events_that_share_one_time_are_all_behind_that_time(job: PastJob) -> None:
    assert encoded(Past(job.folder).at(job.times[-1]).state) == job.states[-1]


def test_a_torn_last_line_is_no_damage(job: PastJob, tmp_path: Path) -> None:
    folder = copied(job, tmp_path)
    path = segments(folder)[-1]
    path.write_bytes(path.read_bytes() + b'{"n":99,"r":{"k":"ev')
    assert encoded(Past(folder).last().state) == job.states[-1]


def test_a_journal_that_is_damaged_in_the_middle_replays_up_to_there_and_says_where(
    job: PastJob, tmp_path: Path
) -> None:
    folder = copied(job, tmp_path)
    path = segments(folder)[0]
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    torn = b"".join(lines[:-4]) + lines[-4][:10] + b"#" + lines[-4][11:] + b"".join(lines[-3:])
    path.write_bytes(torn)
    found: list[str] = []
    with pytest.raises(JournalError, match="checksum") as told:
        found.extend(encoded(each.state) for each in Past(folder).states())
    assert told.value.offset == len(b"".join(lines[:-4]))
    assert found == job.states[: len(found)]
    assert len(found) > 5
    # Moments behind it are reached from the next snapshot.
    assert encoded(Past(folder).last().state) == job.states[-1]


def test_a_closed_part_that_is_cut_short_is_told(job: PastJob, tmp_path: Path) -> None:
    folder = copied(job, tmp_path)
    path = next((folder / "journal" / "closed").glob("000002*"))
    path.write_bytes(path.read_bytes()[:-900])
    with pytest.raises(JournalError, match="000002"):
        list(states(folder))
    path.write_bytes(b"no gzip")
    with pytest.raises(JournalError, match="000002"):
        Past(folder)
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(JournalError, match="has no header"):
        Past(folder)


def test_a_claim_without_a_header_or_a_record_is_passed_over(job: PastJob, tmp_path: Path) -> None:
    folder = copied(job, tmp_path)
    newest = segments(folder)[-1]
    number = int(newest.stem)
    header = encode_header(Header(number + 1, (newest.stem, newest.stat().st_size), core=Past(folder).cores[0]))
    (folder / "journal" / f"{number + 1:06d}.jsonl").write_bytes(header)
    (folder / "journal" / f"{number + 2:06d}.jsonl").write_bytes(b"")
    past = Past(folder)
    assert past.parts[-1].number == number + 1
    assert encoded(past.last().state) == job.states[-1]
    assert encoded(past.at(job.times[-1]).state) == job.states[-1]
    assert past.behind(job.seqs[-1]).seq == job.seqs[-1]


def test_a_job_that_never_started_has_no_past(job: PastJob, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="has no journal") as told:
        Past(tmp_path)
    assert "never started" in told.value.hint
    folder = copied(job, tmp_path)
    for path in segments(folder):
        path.unlink()
    for path in (folder / "journal" / "closed").iterdir():
        path.unlink()
    with pytest.raises(NotFoundError, match="is empty"):
        Past(folder)
    (folder / "journal" / "000001.jsonl").write_bytes(encode_header(Header(1)))
    with pytest.raises(NotFoundError, match="has no state of the job"):
        _ = Past(folder).oldest


def test_a_folder_without_its_spec_or_with_another_one_is_refused(job: PastJob, tmp_path: Path) -> None:
    folder = copied(job, tmp_path)
    text = (folder / "spec.json").read_text()
    (folder / "spec.json").write_text(text.replace('"replicas": 2', '"replicas": 3'))
    with pytest.raises(JournalError, match="the folder's spec gives plan"):
        _ = Past(folder).oldest
    (folder / "spec.json").unlink()
    with pytest.raises(NotFoundError, match="spec cannot be read"):
        Past(folder)


def test_a_snapshot_in_several_records_is_joined(job: PastJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "CHUNK", 1000)
    made = past_of(tmp_path / "job", CASE, every=5)
    (made.folder / "status.json").unlink()
    assert encoded(Past(made.folder).last().state) == job.states[-1]


def test_what_ended_between_two_moments_is_gone(job: PastJob) -> None:
    restarting = next(n for n, text in enumerate(job.states) if json.loads(text)["incidents"])
    over = next(n for n in range(restarting, len(job.states)) if not json.loads(job.states[n])["incidents"])
    past = list(Past(job.folder).states())
    lines = difference(past[restarting].state, past[over].state)
    assert any(line.startswith("incidents[1]: {") and line.endswith(" -> gone") for line in lines)
    assert difference(past[over].state, past[over].state) == []


def test_a_clock_that_went_back_does_not_move_the_journal_back(tmp_path: Path) -> None:
    faults = (Timed(30.0, FaultMove("clock", 0, -3600.0)), Timed(40.0, FaultMove("crash")), *FAULTS)
    made = past_of(tmp_path / "job", Case(5, WORKERS, faults), every=12)
    assert made.times == sorted(made.times)
    assert encoded(Past(made.folder).at(made.times[-1]).state) == made.states[-1]


def test_nodes_of_the_jobs_own_are_told_by_the_journal(tmp_path: Path) -> None:
    made = past_of(tmp_path / "job", Case(4, WORKERS, FAULTS, own_nodes=True), every=12)
    assert [encoded(state) for _, _, state, _ in states(made.folder)] == made.states
    assert Past(made.folder).last().state.job.own_nodes


def test_a_part_that_begins_with_no_snapshot_is_told(job: PastJob, tmp_path: Path) -> None:
    for core in ("", "9.9.9 f00f00f00f00"):
        made = past_of(tmp_path / f"job{len(core)}", CASE, core=core, every=10**6)
        path = segments(made.folder)[0]
        from dljob.telemetry.records import encode_line

        records = [json.loads(line)["r"] for line in path.read_bytes().splitlines()]
        left = [record for record in records if record["k"] in ("header", "event", "change")]
        path.write_bytes(b"".join(encode_line(number, record) for number, record in enumerate(left)))
        with pytest.raises(JournalError, match="begins with no snapshot"):
            list(Past(made.folder).states())


def test_damage_names_the_last_event_before_it(job: PastJob, tmp_path: Path) -> None:
    folder = copied(job, tmp_path)
    path = segments(folder)[-1]
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-4]) + b"#" + b"".join(lines[-4:]))
    with pytest.raises(JournalError) as told:
        Past(folder).last()
    number = int(told.value.hint.rpartition("--event ")[2])
    assert "copy the folder again" in told.value.hint
    assert f"dljob replay {shlex.quote(str(folder))} --event" in told.value.hint
    assert Past(folder).behind(number).seq >= number
    # Without any state before it there is no such event.
    path.write_bytes(b"".join([lines[0], b"#", *lines[1:]]))
    for other in (*segments(folder)[:-1], *(folder / "journal" / "closed").iterdir()):
        other.unlink()
    with pytest.raises(JournalError) as told:
        Past(folder).last()
    assert "--event" not in told.value.hint


def test_a_journal_with_a_header_alone_has_no_last_moment(job: PastJob, tmp_path: Path) -> None:
    folder = copied(job, tmp_path)
    for path in (*segments(folder), *(folder / "journal" / "closed").iterdir()):
        path.unlink()
    (folder / "journal" / "000001.jsonl").write_bytes(encode_header(Header(1)))
    with pytest.raises(NotFoundError, match="has no state of the job"):
        Past(folder).last()


def test_headers_say_whether_they_are_damaged_or_of_another_version(job: PastJob, tmp_path: Path) -> None:
    from dljob.telemetry.records import encode_line

    folder = copied(job, tmp_path)
    path = segments(folder)[-1]
    data = path.read_bytes()
    path.write_bytes(b"x" + data)
    with pytest.raises(JournalError, match="checksum of line 0") as told:
        Past(folder)
    assert "copy the folder again" in told.value.hint
    path.write_bytes(encode_line(0, {"k": "header", "v": 99, "epoch": 1, "prev": None}))
    with pytest.raises(JournalError, match="version 99") as told:
        Past(folder)
    assert "use the dljob that wrote it" in told.value.hint


def test_a_spec_that_cannot_be_read_says_why_and_what_to_do(job: PastJob, tmp_path: Path) -> None:
    folder = copied(job, tmp_path)
    text = (folder / "spec.json").read_text()
    (folder / "spec.json").write_text(text.replace('"replicas"', '"warp": 9, "replicas"'))
    with pytest.raises(NotFoundError, match=r"spec\.roles\.0\.warp: Extra inputs are not permitted\n") as told:
        Past(folder)
    assert told.value.hint.startswith("use the dljob that wrote it: ")
    (folder / "spec.json").write_text(text[:50])
    with pytest.raises(NotFoundError) as told:
        Past(folder)
    assert told.value.hint == "the file is damaged: copy the folder again"
