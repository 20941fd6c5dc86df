"""A job's folder whose files a rank, or whoever sent a copy of it, replaced: a command ends soon, with a sentence."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from simulated_folder import simulated

from dljob.cli import main
from dljob.testing.simulate.drive import case_of

DEEP = "[" * 200_000 + "]" * 200_000
SOON_S = 10
PART = "journal/000001.jsonl"
READERS = {
    "status.json": ("why", "report"),
    "spec.json": ("advise", "replay"),
    "job.json": ("events", "status"),
    "events.jsonl": ("report", "events", "events --tail 5"),
    PART: ("report", "replay"),
    "samples/000002.jsonl": ("report", "advise"),
}
"""File -> commands that read it."""


class TooLateError(BaseException):
    """Raised after SOON_S, in which another program may have the CPU for longer; no command catches it."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "job"
    simulated(folder, case_of(5))
    status = json.loads((folder / "status.json").read_text())
    (folder / "job.json").write_text(
        json.dumps({"name": status["name"], "uid": status["uid"], "dir": "", "started": 1})
    )
    (folder / "samples").mkdir(exist_ok=True)
    (folder / "samples/000002.jsonl").write_text("")
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Iterator[Path]:
    def used_s() -> float:
        """Return the time of this thread, without that in which it could run and had no CPU."""
        _, waiting_ns, _ = Path("/proc/self/schedstat").read_text().split()
        return time.monotonic() - int(waiting_ns) / 1e9

    def stop(_number: int, _frame: FrameType | None) -> None:
        left_s = deadline_s - used_s()
        if left_s <= 0:
            raise TooLateError
        signal.setitimer(signal.ITIMER_REAL, left_s)

    before = signal.signal(signal.SIGALRM, stop)
    deadline_s = used_s() + SOON_S
    signal.setitimer(signal.ITIMER_REAL, SOON_S)
    yield Path(shutil.copytree(original, tmp_path / "job"))
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def run(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    name, *options = command.split()
    more = ["-o", f"{folder.parent}/page.html", "--force"] if name == "report" else options
    code = main.run([name, f"{folder}/", *more])
    said = capsys.readouterr()
    assert "a fault of dljob" not in said.err
    page = (folder.parent / "page.html").read_text() if name == "report" and code == 0 else ""
    return code, said.out + said.err + page


def replace_by_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def replace_by_device(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def make_sparse(file: Path) -> None:
    os.truncate(file, 10 << 30)


def nest(file: Path) -> None:
    with file.open("a") as lines:
        lines.write(DEEP + "\n")


@pytest.mark.parametrize("file", READERS)
@pytest.mark.parametrize("spoil", [replace_by_fifo, replace_by_device, make_sparse, nest])
def test_a_command_ends_soon_whatever_is_in_the_place_of_a_file(file, spoil, folder, capsys):
    spoil(folder / file)
    for command in READERS[file]:
        code, said = run(command, folder, capsys)
        assert said.strip()
        if file in ("status.json", "spec.json") and command in ("why", "report", "replay"):
            assert code == 3
            assert Path(file).name in said


def test_a_segment_that_unpacks_into_gigabytes_is_left_out(folder, capsys):
    bomb = b"1" * (200 << 20)
    (folder / "samples/000001-000001.1.5.9.z").write_bytes(zlib.compress(bomb, 1))
    (folder / "journal/closed").mkdir()
    part = (folder / PART).read_bytes()
    (folder / "journal/closed/000001.jsonl.gz").write_bytes(gzip.compress(part + bomb, 1))
    (folder / PART).unlink()
    code, page = run("report", folder, capsys)
    assert code == 0
    assert "a line is longer than 16 MiB" in page
    assert f"a line at byte {len(part)} is longer than 64 MiB" in page


def test_the_events_behind_a_long_line_are_shown(folder, capsys):
    events = folder / "events.jsonl"
    size = events.stat().st_size
    make_sparse(events)
    os.truncate(events, size + (300 << 20))
    with events.open("a") as lines:
        lines.write('\n{"seq": 9999, "time": 1, "reason": "Last", "target": "job"}\n')
    for command in ("events", "events --tail 5"):
        code, said = run(command, folder, capsys)
        assert (code, said.splitlines()[-1].split()[1:]) == (0, ["Last", "job"])


@pytest.mark.parametrize(
    "event",
    [
        '{"seq": 1e999, "time": 1, "reason": "x", "target": "job"}',
        '{"seq": 9999, "time": "x", "reason": 7, "target": [1], "message": {"a": 1}, "level": 3}',
        '{"seq": 9999, "time": 1e308, "reason": null, "target": null, "message": null, "seconds": "x"}',
        '{"seq": 9999, "message": ' + "[" * 500 + "]" * 500 + "}",
    ],
)
def test_an_odd_event_hides_no_other(event, folder, capsys):
    with (folder / "events.jsonl").open("a") as lines:
        lines.write(event + "\n")
    for command in ("events", "events --tail 5", "report", "advise"):
        assert run(command, folder, capsys)[0] == 0


@pytest.mark.parametrize("value", [7, "x", [1], None, float("inf"), float("nan")])
def test_a_status_of_odd_values_is_shown(value, folder, capsys):
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps(status | dict.fromkeys(set(status) - {"name", "uid"}, value)))
    for command in ("status", "why", "report"):
        run(command, folder, capsys)
