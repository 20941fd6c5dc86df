"""The program of the metric sinks: rows from its stdin to each sink of the group, and reports to PrimeMaster."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dljob.logs import archive
from dljob.runtime.process import extensions
from dljob.runtime.sinks import process
from dljob.runtime.sinks.feeding import MetricRow, SinkFeeder
from dljob.runtime.sinks.sink import SinkRun

ORDER: dict[str, Any] = {"name": "j", "uid": "0123456789abcdef", "attempt": 2, "code": ""}
USERS = Path(__file__).parents[3] / "ray" / "users"


@contextmanager
def stdout_in(file: Path) -> Iterator[None]:
    """Descriptor 1 is a file, which stands for the pipe to PrimeMaster."""
    own = os.dup(1)
    with file.open("w") as pipe:
        os.dup2(pipe.fileno(), 1)
    yield
    os.dup2(own, 1)
    os.close(own)


def lines(*rows: Any) -> io.StringIO:
    return io.StringIO("".join(json.dumps(row) + "\n" for row in rows))


def test_rows_reach_a_sink_of_the_codes_folder_and_problems_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "_exit", lambda code: None)
    monkeypatch.delenv(archive.CHECKPOINT, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = extensions.installed
    users = lambda group, code: {name: p for name, p in found(group, code).items() if name.endswith("_user")}  # noqa: E731
    monkeypatch.setattr(process, "installed", users)  # dljob's own take seconds for their imports
    monkeypatch.setattr(sys, "stdin", lines([1, 5, 0.5, {"loss": 2.0}], [1, 13, 0.5, {"loss": 13.0}]))
    monkeypatch.setenv("SINK_USER_KEY", "hidden-key")
    with stdout_in(tmp_path / "reports"):
        process.main([json.dumps({**ORDER, "folder": str(tmp_path), "code": str(USERS)})])
    assert (tmp_path / "metrics" / "sink_user" / "rows.jsonl").read_text().splitlines() == [
        '["open", "j-01234567", false]',
        '[5, {"loss": 2.0}]',
    ]
    said = "failed and gets no more rows: RuntimeError: refused with *** at step 13"
    assert [json.loads(line) for line in (tmp_path / "reports").read_text().splitlines()] == [
        {"sink": "sink_user", "said": said}
    ]


def test_files_go_to_the_checkpoint_volume_where_there_is_one(tmp_path):
    order = {**ORDER, "folder": "/jobs/j"}
    assert process.folder_of(order, "") == Path("/jobs/j/metrics")
    assert process.folder_of(order, "/ckpt") == Path("/ckpt/j-01234567/metrics")


def test_a_torn_line_is_left_out_and_the_rest_has_the_jobs_attempt():
    class Feeder:
        def __init__(self) -> None:
            self.rows = list[MetricRow]()

        def put(self, row: MetricRow) -> None:
            self.rows.append(row)

    sink: Any = Feeder()
    process.feed(['[1, 5, 0.5, {"a": 1}]\n', "[1, 6, 0."], 2, [sink])
    assert sink.rows == [MetricRow((2, 1), 5, 0.5, {"a": 1})]


def test_a_sink_that_does_not_close_is_left_behind(tmp_path):
    let_go, said = threading.Event(), list[str]()

    class Hanging:
        def __init__(self, run: SinkRun) -> None:
            let_go.wait(60)

    feeder = SinkFeeder("s", lambda: Hanging, SinkRun("j", "j", "u", 1, tmp_path), lambda *_: None)  # type: ignore[arg-type]
    feeder.thread.start()
    process.end([feeder], 0.05, lambda name, text: said.append(f"{name} {text}"))
    assert said == ["s did not close within 0.05 s, and is left behind"]
    let_go.set()


def test_a_report_to_a_primemaster_that_is_gone_stays_in_the_log(capsys):
    class Gone(io.StringIO):
        def write(self, text: str, /) -> int:
            raise BrokenPipeError

    process.report(Gone(), threading.Lock(), "s", "failed")
    assert json.loads(capsys.readouterr().err) == {"sink": "s", "said": "failed"}


def test_sinks_are_found_beside_user_code_in_the_folder_where_ray_was_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert process.code_of({**ORDER, "code": "/code"}) == "/code"
    assert process.code_of(ORDER) == str(tmp_path)
    monkeypatch.chdir("/")
    assert process.code_of(ORDER) == ""
