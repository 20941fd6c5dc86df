"""Recording of the calls that a host's ranks make and run, for `dljob trace` (docs/adr/0091-traced-calls.md).

    <job>/calls/<role>-<rank>.<process>.jsonl       rows of one process of a rank (`calls.trace_rows`)

The path of a call costs one append to a deque; a thread writes once a second. No row is worth a call: where the folder
cannot be written, rows are dropped and counted, and the rank's log says so once.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from dljob.calls import trace_rows
from dljob.calls.trace_rows import OK, PARKED_S, CalleeRow, CallerRow, RowsDropped, TracedRow
from dljob.logs import archive
from dljob.logs.archive import CALLS_BYTES
from dljob.plan.role import RolePlan
from dljob.runtime.process import guard
from dljob.runtime.process.messages import GROUPS, KEEPER, Call, JobInfo, Reply
from dljob.runtime.process.worker_context import CallSpan, RankCall
from dljob.spec.variables import TRACE_CALLS

FLUSH_S = 1.0
END_S = 0.2
"""Most seconds that the end of a process waits for its last rows."""
WELL_S = 2.0
"""Most seconds that the report of a rank's end waits for them: once it is known, Ray may end the process at once."""
ROOM = 1000
"""Rows that wait for the thread; what a burst makes beyond them is dropped."""


class CallTraces:
    """The recording of one host; does nothing where the role is not traced."""

    def __init__(self, job: JobInfo, role: RolePlan) -> None:
        self._folder = Path(job.dir) / archive.CALLS
        self._role = role.name
        self._is_on = dict(role.env).get(TRACE_CALLS, "0") not in ("", "0")
        # Half: files of processes that ended may take the other half (`trim`).
        self._most = CALLS_BYTES // 2 // max(1, sum(ranks for _, ranks in job.roles))
        volume = os.environ.get(archive.CHECKPOINT)
        root = archive.root(volume, job.name, job.uid) if volume else None
        self._place = root and root / archive.CALLS / f"attempt-{job.attempt}"
        self._lock = threading.Lock()
        self._ranks: dict[int, RankTrace] = {}
        self._rounds = threading.Condition()
        self._asked = False
        self._begun = self._written = 0
        """Rounds of the thread that have begun, and that have ended."""

    def of(self, rank: int) -> RankTrace | None:
        """Return the recorder of a rank; None where the role is not traced."""
        if not self._is_on:
            return None
        with self._lock:
            if not self._ranks:
                threading.Thread(target=self._run, name="dljob-call-trace", daemon=True).start()
                guard.at_end(self.write_out)
            if rank not in self._ranks:
                self._ranks[rank] = RankTrace(self._folder, self._role, rank, self._most)
            return self._ranks[rank]

    def _run(self) -> None:
        with suppress(OSError):  # the first write reports it
            if self._place is not None:
                archive.register_calls(self._folder, self._place)
            archive.trim(self._folder.glob("*.jsonl"), CALLS_BYTES // 2)
        last = time.monotonic()
        while True:
            with self._rounds:
                self._rounds.wait_for(lambda: self._asked, FLUSH_S)
                self._asked = False
                self._begun += 1
            now = time.monotonic()
            for rank_trace in list(self._ranks.values()):
                rank_trace.flush(now - last)
            last = now
            with self._rounds:
                self._written = self._begun
                self._rounds.notify_all()

    def write_out(self, within_s: float = END_S) -> None:
        """Have all rows of now written; gives up on a volume that hangs, after `within_s` seconds."""
        if not self._ranks:
            return
        with self._rounds:
            # A round that has begun may have passed the last rows already.
            awaited_round, self._asked = self._begun + 1, True
            self._rounds.notify_all()
            self._rounds.wait_for(lambda: self._written >= awaited_round, within_s)


class RankTrace:
    """The recording of one rank. `flush` belongs to one thread, all else to any."""

    def __init__(self, folder: Path, role: str, rank: int, most: int) -> None:
        self._name = f"{role}/{rank}"
        self._role, self._rank = role, rank
        self._path = folder / f"{role}-{rank}.{secrets.token_hex(4)}.jsonl"
        self._most = most
        self.level = 0
        self._floor = 0
        self._rows: deque[TracedRow] = deque()
        self._dropped = 0
        self._bytes = 0
        self._failed = ""
        self._begun: dict[str, tuple[float, str]] = {}
        """Call id -> when a traced call of this rank began to run, in monotonic seconds, and its method."""

    # -- on the path of a call

    def begin(self, call: RankCall, number: int) -> None:
        """Attach to a call that this rank makes what is measured of it, if it is sampled."""
        level = self.level
        if trace_rows.is_sampled(number, level) and _is_method(call):
            call.span = CallSpan(level)

    def follow(self, call: RankCall, *, is_sent: bool) -> None:
        """Measure a call that does not go the usual way, whether it is sampled or not."""
        if call.span is None and _is_method(call):
            call.span = CallSpan(-1, 1, call.started) if is_sent else CallSpan(-1)

    def ended(self, call: RankCall, outcome: str, answer_bytes: int = 0) -> None:
        """Record the end of a call, if it was sampled or met trouble."""
        span = call.span
        if span is None:
            return
        if span.level < 0 and span.sends < 2 and span.parked < PARKED_S and outcome == OK:
            return
        seconds, size = time.monotonic() - call.started, len(call.payload) + len(call.common)
        identity = call.id, call.role, call.rank, call.label or call.method, call.started
        progress = span.sends, span.sent, outcome, max(0, span.level)
        self._add(CallerRow(*identity, span.parked, seconds, *progress, size, answer_bytes))

    def began(self, call: Call) -> None:
        """Note that a call to this rank begins to run."""
        self._begun[call.id] = time.monotonic(), call.method

    def serve(self, call: Call, answer: Callable[[], Reply | Future[Reply]]) -> Reply | Future[Reply]:
        """Run a call to this rank, and record it."""
        # A caller may sample more than a rank with many callers can write. A call in trouble is always recorded.
        is_recorded = call.again or trace_rows.is_sampled(trace_rows.call_number(call.id), self.level)
        start = time.monotonic()

        def record(reply: Reply | None) -> None:
            end = time.monotonic()
            begun, method = self._begun.pop(call.id, (end, call.method))
            if is_recorded:
                outcome = "error" if reply is None else reply.refused or reply.error_type or OK
                self._add(CalleeRow(call.caller, call.id, method, start, begun - start, end - start, outcome))

        try:
            reply = answer()
        except BaseException:
            record(None)
            raise
        if isinstance(reply, Future):
            reply.add_done_callback(lambda done: record(done.result()))
        else:
            record(reply)
        return reply

    def _add(self, row: TracedRow) -> None:
        # No lock: an append is atomic, and a count that misses one is good enough.
        if len(self._rows) < ROOM:
            self._rows.append(row)
        else:
            self._dropped += 1

    # -- in the thread

    def flush(self, seconds: float) -> None:
        """Write the rows of the last `seconds`, and set the level of the next ones."""
        count = len(self._rows)
        rows = [self._rows.popleft() for _ in range(count)]
        self.level = trace_rows.next_level(self.level, self._floor, count + self._dropped, max(seconds, 0.001))
        dropped, self._dropped = self._dropped, 0
        if dropped:
            rows.append(RowsDropped(dropped))
        if not rows:
            return
        # The wall clock may be set meanwhile: rows are measured by another, and get a date here.
        offset = time.time() - time.monotonic()
        try:
            self._write([self._dated(row, offset) for row in rows])
            self._failed = ""
        except OSError as error:
            self._dropped += count + dropped
            self._tell(error.strerror or str(error))

    def _dated(self, row: TracedRow, offset: float) -> TracedRow:
        if isinstance(row, CallerRow):
            sent = row.sent_at + offset if row.sent_at else 0.0
            # The caller's name is in the file's first line.
            return row._replace(id=row.id.removeprefix(f"{self._name}:"), start=row.start + offset, sent_at=sent)
        if isinstance(row, CalleeRow):
            call_id = row.id.removeprefix(f"{row.caller}:")
            return row._replace(id=call_id, start=row.start + offset)
        return row

    def _write(self, rows: list[TracedRow]) -> None:
        text = "".join(map(trace_rows.encode, rows)).encode()
        if self._bytes + len(text) > self._most:
            self._thin()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        out = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            # Also where another process made room (`trim`).
            if not (size := os.fstat(out).st_size):
                text = trace_rows.header(self._role, self._rank).encode() + text
            if os.write(out, text) < len(text):
                os.write(out, b"\n")  # what is left of the torn row is a line of its own
            self._bytes = size + len(text)
        finally:
            os.close(out)

    def _thin(self) -> None:
        """Leave half of the room to the next rows."""
        with suppress(FileNotFoundError):
            with self._path.open("rb") as file:
                old_rows = trace_rows.decode(file)
            thinned_rows, self._floor = trace_rows.thin_rows(
                old_rows.rows if old_rows else [], self._floor, self._most // 2
            )
            self.level = max(self.level, self._floor)
            part = self._path.with_suffix(".part")
            text = trace_rows.header(self._role, self._rank) + "".join(map(trace_rows.encode, thinned_rows))
            try:
                part.write_text(text, encoding="utf-8")
                part.replace(self._path)
            finally:
                part.unlink(missing_ok=True)

    def _tell(self, reason: str) -> None:
        # A folder that cannot be written stays so for hours: once per change is enough.
        if reason != self._failed:
            self._failed = reason
            print(f"[dljob] calls are not recorded: {reason}: {self._path}", file=sys.stderr, flush=True)  # noqa: T201


def _is_method(call: RankCall) -> bool:
    return call.method not in GROUPS and not call.role.startswith(KEEPER)
