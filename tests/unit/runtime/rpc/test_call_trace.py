"""The recording of calls: what a rank writes of its calls, within bounds, whatever the folder does."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dljob.calls.trace_rows import CalleeRow, CallerRow, RowsDropped, TracedFile, decode, is_sampled
from dljob.logs import archive
from dljob.logs.archive import keep, trim
from dljob.runtime.process import guard, wire
from dljob.runtime.process.messages import BATCH, DESCRIBE, Call, NotRun, Reply
from dljob.runtime.process.worker_context import CallSpan, RankCall
from dljob.runtime.rpc import call_trace
from dljob.runtime.rpc.call_trace import CallTraces, RankTrace
from dljob.runtime.rpc.client import CallCounts
from dljob.runtime.rpc.rpc import rpc
from dljob.runtime.rpc.server import RpcServer

UID = "0123456789abcdef" * 2
AWAY = 3
"""A number that level 1 leaves out."""


@pytest.fixture
def trace(tmp_path: Path) -> RankTrace:
    return RankTrace(tmp_path / "calls", "w", 2, 100_000)


def call(number: int = 1, role: str = "t", method: str = "m") -> RankCall:
    return RankCall(role, 0, method, b"12345", 60.0, idempotent=False, id=f"w/2:ab:{number}")


def request(number: int = 1, **more: Any) -> Call:
    return Call(f"c/0:ab:{number}", 2, 1, "m", 60.0, "c/0", traced=True, **more)


def written(folder: Path) -> TracedFile:
    (path,) = folder.rglob("*.jsonl")
    with path.open("rb") as lines:
        found = decode(lines)
    assert found is not None
    return found


def made(trace: RankTrace, number: int, outcome: str = "ok") -> None:
    one = call(number)
    trace.begin(one, number)
    trace.ended(one, outcome, 7)


def test_a_call_is_written_with_its_times_by_the_wall_clock(trace, tmp_path):
    one = call()
    trace.begin(one, 1)
    assert one.span == CallSpan(0)
    one.span.sends, one.span.sent, one.span.parked = 1, one.started + 0.25, 0.125
    trace.ended(one, "ok", 7)
    trace.flush(1.0)
    (row,) = written(tmp_path).rows
    assert isinstance(row, CallerRow)
    assert row.start == pytest.approx(time.time(), abs=60)
    assert row.sent_at - row.start == pytest.approx(0.25, abs=0.001)
    assert row[:4] == ("ab:1", "t", 0, "m")
    assert (row.parked_s, row.sends, row.outcome, row.argument_bytes, row.answer_bytes) == (0.125, 1, "ok", 5, 7)


def test_a_batch_is_written_by_the_method_of_its_calls(trace, tmp_path):
    def answer() -> Reply:
        trace.began(request())  # as unpacked
        return Reply()

    batch = replace(call(), method=BATCH, label="m")
    trace.begin(batch, 1)
    trace.ended(batch, "ok", 7)
    trace.serve(replace(request(), method=BATCH), answer)
    trace.flush(1.0)
    assert [row.method for row in written(tmp_path).rows if isinstance(row, CallerRow | CalleeRow)] == ["m", "m"]
    counts = CallCounts()
    counts.add(batch, 0)
    assert counts.methods == {"t.m": [1, 0, 0, 0]}


def test_a_call_that_is_run_is_written_with_its_wait(trace, tmp_path):
    def answer() -> Reply:
        time.sleep(0.01)
        trace.began(request())
        return Reply()

    assert trace.serve(request(), answer) == Reply()
    assert trace.serve(request(2), lambda: Reply(error_type="CallError", refused=NotRun.ENDED)).refused
    with pytest.raises(SystemExit):
        trace.serve(request(3), sys.exit)
    trace.flush(1.0)
    ran, refused, broken = written(tmp_path).rows
    assert isinstance(ran, CalleeRow)
    assert (ran.caller, ran.id, ran.method, ran.outcome) == ("c/0", "ab:1", "m", "ok")
    assert 0.01 <= ran.waited_s <= ran.seconds
    assert isinstance(refused, CalleeRow)
    assert (refused.outcome, refused.waited_s) == ("ended", refused.seconds)
    assert isinstance(broken, CalleeRow)
    assert broken.outcome == "error"


def test_calls_that_are_not_sampled_are_written_only_in_trouble(trace, tmp_path):
    assert not is_sampled(AWAY, 1)
    trace.level = 1
    for number, outcome in ((AWAY, "ok"), (AWAY, "PeerLostError")):
        one = call(number)
        trace.begin(one, number)
        assert one.span is None
        trace.follow(one, is_sent=True)
        assert one.span == CallSpan(-1, 1, one.started)
        assert not one.span.is_shown
        trace.ended(one, outcome)
    trace.ended(call(), "ok")
    trace.flush(1.0)
    assert [row.outcome for row in written(tmp_path).rows if isinstance(row, CallerRow)] == ["PeerLostError"]


def test_a_callee_with_many_callers_writes_a_part_of_them(trace, tmp_path):
    trace.level = 1
    for own in (request(AWAY), request(AWAY, again=True)):
        assert trace.serve(own, Reply) == Reply()
    trace.flush(1.0)
    assert len(written(tmp_path).rows) == 1


def test_a_call_of_which_no_row_is_made_leaves_nothing_behind(trace):
    """Callers sample by their own level, so a rank with many of them runs far more traced calls than it writes."""
    trace.level = 1

    def answer() -> Reply:
        trace.began(request(AWAY))
        return Reply()

    def broken() -> Reply:
        trace.began(request(AWAY))
        raise SystemExit

    trace.serve(request(AWAY), answer)
    with pytest.raises(SystemExit):
        trace.serve(request(AWAY), broken)
    assert trace._begun == {}


@pytest.mark.parametrize("own", [call(method=DESCRIBE), call(role=":queue:q")])
def test_calls_to_hosts_and_storage_actors_are_not_traced(trace, own):
    trace.begin(own, 1)
    trace.follow(own, is_sent=False)
    assert own.span is None


def test_a_burst_is_bounded_and_raises_the_level(trace, tmp_path):
    for number in range(call_trace.ROOM + 5):
        made(trace, number)
    trace.flush(1.0)
    found = written(tmp_path)
    assert found.rows[-1] == RowsDropped(5)
    assert len(found.rows) == call_trace.ROOM + 1
    assert trace.level == 5
    for _ in range(5):
        trace.flush(1.0)
    assert trace.level == 0


def test_a_file_stays_within_its_room_over_many_rows(tmp_path):
    trace = RankTrace(tmp_path / "calls", "w", 2, 20_000)
    for number in range(3000):
        made(trace, number)
        if number % 10 == 9:
            trace.flush(1.0)
    (path,) = (tmp_path / "calls").iterdir()
    assert path.stat().st_size <= 20_000
    found = written(tmp_path)
    numbers = [int(row.id.split(":")[1]) for row in found.rows if isinstance(row, CallerRow)]
    assert min(numbers) < 100
    assert max(numbers) > 2900
    assert sum(row.calls for row in found.rows if isinstance(row, RowsDropped)) > 100


def full(*_: object) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("fails", ["open", "write"])
def test_a_folder_that_cannot_be_written_is_told_once_and_rows_are_counted(trace, tmp_path, fails, monkeypatch, capsys):
    with monkeypatch.context() as broken:
        broken.setattr(call_trace.os, fails, full)
        for number in (1, 2):
            made(trace, number)
            trace.flush(1.0)
    assert capsys.readouterr().err.count("calls are not recorded: No space left on device") == 1
    made(trace, 3)
    trace.flush(1.0)
    found = written(tmp_path)
    assert sum(row.calls for row in found.rows if isinstance(row, RowsDropped)) == 2
    assert [row.id for row in found.rows if isinstance(row, CallerRow)] == ["ab:3"]


def test_a_row_that_a_full_disk_tore_costs_no_later_one(trace, tmp_path, monkeypatch):
    made(trace, 1)
    trace.flush(1.0)
    write = os.write
    made(trace, 2)
    with monkeypatch.context() as broken:
        broken.setattr(call_trace.os, "write", lambda out, text: write(out, text[: max(1, len(text) // 2)]))
        trace.flush(1.0)
    made(trace, 3)
    trace.flush(1.0)
    found = written(tmp_path)
    assert [row.id for row in found.rows if isinstance(row, CallerRow)] == ["ab:1", "ab:3"]
    assert found.damaged_lines == 1


def test_a_file_that_another_process_deleted_is_begun_anew(trace, tmp_path):
    for number in (1, 2):
        made(trace, number)
        trace.flush(1.0)
        if number == 1:
            trim((tmp_path / "calls").iterdir(), 0)
    assert [row.id for row in written(tmp_path).rows if isinstance(row, CallerRow)] == ["ab:2"]
    trace._thin()
    trim((tmp_path / "calls").iterdir(), 0)
    trace._thin()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., CallTraces]]:
    """Make the recording of a host with an environment; all of them end with the test."""
    ends: list[Callable[[], None]] = []
    monkeypatch.setattr(guard, "at_end", ends.append)
    job: Any = SimpleNamespace(name="j", uid=UID, attempt=2, dir=str(tmp_path), roles=(("w", 3), ("t", 1)))
    yield lambda **env: CallTraces(job, cast("Any", SimpleNamespace(name="w", env=tuple(env.items()))))
    for end in ends:
        end()


@pytest.mark.parametrize("env", [{}, {"DLJOB_TRACE_CALLS": "0"}, {"DLJOB_TRACE_CALLS": ""}])
def test_a_role_that_is_not_traced_records_nothing(host, tmp_path, env):
    assert host(**env).of(0) is None
    assert list(tmp_path.iterdir()) == []


def test_the_rows_of_all_ranks_of_a_host_are_on_disk_at_its_end(host, tmp_path):
    traces = host(DLJOB_TRACE_CALLS="1")
    for rank in (0, 1):
        own = traces.of(rank)
        assert own is not None
        assert traces.of(rank) is own
        assert own._most == call_trace.CALLS_BYTES // 8
        made(own, 1)
    traces.write_out()
    assert sorted(path.name.split(".")[0] for path in (tmp_path / "calls").iterdir()) == ["w-0", "w-1"]


def test_a_disk_that_hangs_delays_neither_calls_nor_the_end(host, monkeypatch):
    hangs, waits = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        hangs.set()
        waits.wait(30)

    monkeypatch.setattr(RankTrace, "flush", hang)
    traces = host(DLJOB_TRACE_CALLS="1")
    own = traces.of(0)
    assert own is not None
    ends = threading.Thread(target=traces.write_out)
    ends.start()
    assert hangs.wait(30)
    for number in range(2 * call_trace.ROOM):
        made(own, number)
    assert len(own._rows) == call_trace.ROOM
    ends.join(call_trace.END_S + 10)
    assert not ends.is_alive()
    waits.set()


class Slow:
    @rpc(concurrency=1)
    def once(self) -> None:
        """Take no time."""


def test_the_wait_for_setup_is_told_apart_from_the_run(trace, tmp_path):
    served = RpcServer("w")
    served.trace = trace
    asked = replace(request(), method="once")
    opens = threading.Timer(0.05, lambda: served.open(Slow()))

    def answer() -> Reply:
        opens.start()
        return served.answer(asked, wire.dump(((), {}), ""))

    assert not trace.serve(asked, answer).error_type
    opens.join()
    trace.flush(1.0)
    (row,) = written(tmp_path).rows
    assert isinstance(row, CalleeRow)
    assert 0.05 <= row.waited_s <= row.seconds
    assert row.outcome == "ok"


def test_traced_calls_are_copied_to_the_volume_of_the_checkpoints(host, tmp_path, monkeypatch):
    monkeypatch.setenv("DLJOB_CHECKPOINT", str(tmp_path / "ckpt"))
    monkeypatch.setattr(archive, "check_room", lambda *_: None)
    traces = host(DLJOB_TRACE_CALLS="1")
    own = traces.of(0)
    assert own is not None
    made(own, 1)
    traces.write_out()
    (tmp_path / "logs").mkdir()
    assert keep(tmp_path / "logs") == ""
    (file,) = (tmp_path / "calls").glob("*.jsonl")
    assert (tmp_path / "ckpt" / "j-01234567" / "calls" / "attempt-2" / file.name).read_bytes() == file.read_bytes()
