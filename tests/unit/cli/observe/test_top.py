"""top: the picture of jobs and ranks at any size, and the terminal that it takes and gives back."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_kube import add_head, add_job
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from dljob.api import registry
from dljob.api.local import views
from dljob.api.registry import RegistryEntry
from dljob.api.shown_job import JobSummary
from dljob.cli import description, main
from dljob.cli.top import feed as feeds
from dljob.cli.top import picture, screen
from dljob.cli.top.feed import TopFeed
from dljob.cli.top.picture import TopPosition, TopTable
from dljob.errors import NotFoundError, UnreachableError

UID = "a7efe1" * 5 + "00"
ENTRY = RegistryEntry("ppo", UID, "/gone")


def rank(number: int, **more: Any) -> dict[str, Any]:
    return {"role": "w", "rank": number, "phase": "Ready", "incarnation": 1, "nodeName": "n1", "step": None, **more}


RANKS = [
    rank(0, step=7, secondsPerStep=0.25, heartbeatAge=0.4, memoryMib=2048, deviceMib=900),
    rank(1, step=3, secondsPerStep=2.5, heartbeatAge=61.0, incarnation=2),
    rank(2, phase="Failed", nodeName=None),
]


def status(**more: Any) -> dict[str, Any]:
    return {"name": "ppo", "uid": UID, "phase": "Running", "ranks": RANKS, **more}


def table(**more: Any) -> TopTable:
    return picture.of_job(views.overview(ENTRY, status(**more)), 0.0)


def texts(shown: TopTable, at: TopPosition, width: int = 80, height: int = 24, remark: str = "") -> list[str]:
    made = picture.lines(shown, at, width, height, remark)
    assert len(made) == height
    assert {cell_len(line.text) for line in made} == {width}
    return [line.text.rstrip() for line in made]


def test_one_jobs_ranks_stand_under_what_the_job_does():
    faults = [{"firstCause": "w/1: Killed"}]
    progress = {"step": 7, "goodputPermille": 905, "lastCheckpointStep": 5}
    said = table(progress=progress, restarts={"process": 2}, reason="Restarting", message="w/2", recentFaults=faults)
    assert texts(said, TopPosition(), height=11) == [
        "ppo (a7efe1a7): Running",
        "Restarting: w/2",
        "step 7, saved 5  goodput 90.5%  restarts 2",
        "last failure: w/1: Killed",
        "3 ranks: 1 Failed, 2 Ready",
        "RANK  PHASE   STEP  STEP TIME  HEARD      MEMORY   DEVICE   INCARNATION  NODE",
        "w/0   Ready   7     0.25 s     0.4 s ago  2.0 GiB  900 MiB  1            n1",
        "w/1   Ready   3     2.5 s      1m01s ago  -        -        2            n1",
        "w/2   Failed  -     -          -          -        -        1            -",
        "",
        "q quit  j/k or arrows scroll  s sort: rank",
    ]


def test_what_stands_still_is_the_first_that_top_and_status_say():
    stall = {"sentence": "w/0 has waited 61 s for w/1", "hung": False}
    said = {"reason": "StallFound", "message": "w/0 has waited since 3", "stalls": [stall, {**stall, "hung": True}]}
    lines = ["stands still: w/0 has waited 61 s for w/1", "hung: w/0 has waited 61 s for w/1"]
    assert table(**said).head[1:3] == lines
    shown = description.detail(views.overview(ENTRY, status(**said)), 0.0, "dljob events j")
    assert [line.strip() for line in shown[1:3]] == lines
    assert not any("since 3" in line for line in [*shown, *table(**said).head])


def test_a_silent_and_a_failed_rank_stand_out():
    assert [table().marked(row) for row in RANKS] == [False, True, True]


def test_a_narrow_terminal_keeps_what_matters_most():
    assert texts(table(), TopPosition(), 40, 8)[-5:-1] == [
        "RANK  PHASE   STEP  STEP TIME  HEARD",
        "w/0   Ready   7     0.25 s     0.4 s ago",
        "w/1   Ready   3     2.5 s      1m01s ago",
        "w/2   Failed  -     -          -",
    ]


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({"serves": True}, "Ready"),
        ({"serves": False}, "Unready"),
        ({"serves": False, "weights": {"state": "Fresh"}}, "Unready"),
        ({"serves": False, "weights": {"state": "Stale"}}, "Stale"),
        ({"serves": False, "weights": {"state": "Loading"}}, "Loading"),
        ({"phase": "Starting", "serves": False}, "Starting"),
        ({"phase": None}, "-"),
    ],
)
def test_a_server_that_gets_no_requests_is_not_shown_as_ready(more, shown):
    assert description.rank_phase(rank(0, **more)) == shown


def test_a_low_terminal_keeps_the_ranks_before_the_head():
    assert [line.split()[0] for line in texts(table(), TopPosition(), 80, 4)] == ["RANK", "w/0", "w/1", "q"]
    assert len(texts(table(), TopPosition(), 80, 1)) == 1


def test_rows_scroll_and_say_which_are_shown():
    said = table(ranks=[rank(number) for number in range(10_000)])
    at = TopPosition()
    for key in ("j", "down", " ", "k", "pagedown", "up", "pageup", "x"):
        assert at.press(key, 9, 10)
    assert (at.first, texts(said, at)[-1]) == (10, "q quit  j/k or arrows scroll  s sort: rank  11-29 of 10000")
    at.first = 99_999
    assert "9982-10000 of 10000" in texts(said, at)[-1]
    assert at.press("g", 9, 10)
    assert at.first == 0
    assert not at.press("q", 9, 10)


@pytest.mark.parametrize(
    ("sort", "order"), [(0, [0, 1, 2]), (1, [2, 0, 1]), (2, [2, 1, 0]), (3, [1, 0, 2]), (8, [0, 1, 2])]
)
def test_rows_are_sorted_by_the_chosen_column(sort, order):
    assert [row["rank"] for row in picture.ordered(table(), sort)] == order


def test_the_sort_goes_round_all_columns():
    at = TopPosition()
    for _ in range(9):
        at.press("s", 9, 10)
    assert at.sort == 0
    at.sort = 8
    texts(table(ranks=[]), at)
    assert at.sort == 8
    del (said := status())["ranks"]
    texts(picture.of_job(views.overview(ENTRY, said), 0.0), at)
    assert at.sort == 4, "roles have fewer columns"


def test_without_ranks_the_roles_are_shown():
    said = status(roles=[{"name": "w", "ready": 1, "desired": 2, "failed": 1, "restarts": 3}])
    del said["ranks"]
    shown = picture.of_job(views.overview(ENTRY, said), 0.0)
    assert picture.full_table(shown)[-1].split() == ["w", "1", "2", "1", "3"]
    assert shown.marked(said["roles"][0])


def test_a_job_of_no_ranks_has_a_heading_alone():
    assert texts(table(ranks=[]), TopPosition())[2:4] == ["0 ranks", texts(table(ranks=[]), TopPosition())[3]]


def test_an_old_picture_says_why():
    assert texts(table(), TopPosition(), remark="PrimeMaster \x1b[2Jis away")[-1] == "PrimeMaster \\x1b[2Jis away"


EVIL = st.text(st.characters(codec="utf-8"), max_size=60) | st.just("\x1b[2J\u202eevil\x9b漢字\n")
VALUE = st.none() | st.integers() | st.floats(allow_nan=False) | EVIL


@given(
    st.lists(st.dictionaries(st.sampled_from([*RANKS[0], "node", "more"]), VALUE), max_size=6),
    EVIL, st.integers(1, 200), st.integers(1, 40), st.integers(0, 9),
)  # fmt: skip
def test_whatever_a_status_holds_fits_the_terminal_and_commands_nothing(ranks, message, width, height, sort):
    said = table(ranks=ranks, message=message, reason=message, recentFaults=[{"firstCause": message}])
    shown = texts(said, TopPosition(sort=sort), width, height)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", "".join(shown))


def summary(name: str, phase: str, **more: Any) -> JobSummary:
    known: dict[str, Any] = {"ready": "1/2", "restarts": 1, "progress": {}, "started": "-", "data": {}, "listed": {}}
    return JobSummary(name=name, uid=UID, phase=phase, **{**known, **more})


def test_all_jobs_are_rows_with_their_steps():
    stands = {"step": 4, "stepTime": "1970-01-01T00:00:00Z", "secondsPerStep": 1.0}
    jobs = [summary("a", "Running", progress=stands), summary("b", "Failed", progress=stands)]
    shown = picture.of_jobs(jobs, 60.0)
    assert picture.full_table(shown) == [
        "jobs: 1 Failed, 1 Running",
        "",
        "NAME  PHASE    READY  STEP                              RESTARTS  UID       AGE",
        "a     Running  1/2    4, 1m00s ago (usually every 1 s)  1         a7efe1a7  -",
        "b     Failed   1/2    4                                 1         a7efe1a7  -",
    ]
    assert [shown.marked(row) for row in shown.rows] == [False, True]
    ended = [summary(name, "Succeeded", started="1970-01-01T00:00:00Z") for name in "ac"]
    jobs = [ended[0], summary("b", "Running"), ended[1], summary("d", "Pending", restarts=7)]
    shown = picture.of_jobs(jobs, 3725.0)
    for sort in range(len(shown.columns)):
        rows = picture.ordered(shown, sort)
        assert {row["name"] for row in rows[:2]} == {"b", "d"}, "running jobs come first, however they are sorted"
    assert [line.split()[-1] for line in picture.full_table(shown)[-2:]] == ["1h02m", "1h02m"]
    assert picture.full_table(picture.of_jobs([summary("a", "Running", namespace="team")], 0.0))[2].startswith(
        "NAMESPACE"
    )
    assert picture.full_table(picture.of_jobs([], 0.0))[0] == "jobs: none"


def test_no_number_is_cut_where_a_later_row_is_longer_than_the_first():
    stands = {"step": 1200, "stepTime": "1970-01-01T00:00:00Z", "secondsPerStep": 0.4}
    jobs = [summary("a", "Running"), summary("b" * 24, "Running", progress=stands, restarts=12)]
    shown = picture.of_jobs(jobs, 46.0)
    cells = {cell for line in picture.full_table(shown) for cell in re.split(r" {2,}", line)}
    for width in range(40, 121):
        lines = texts(shown, TopPosition(), width, 7)
        head, *rows = [line for line in lines if line.startswith(("NAME", "a ", "bbb"))]
        assert head.split(), width
        assert {cell for line in rows for cell in re.split(r" {2,}", line)} <= cells, width


# -- the feed


def test_a_question_without_an_answer_keeps_the_last_table(monkeypatch):
    monkeypatch.setattr(feeds, "REFRESH_S", 0.0)
    answers: Iterator[Any] = iter([table(), UnreachableError("no answer"), ValueError("odd")])
    asked = threading.Semaphore(0)

    def ask() -> TopTable:
        asked.acquire()
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    feed, seen = TopFeed(ask), list[str]()
    feed.start()
    for _ in range(3):
        asked.release()
        feed.clear()
        seen.append(feed.trouble)
        assert feed.table is not None
    feed.close()
    asked.release()
    assert seen == ["", "no answer", "ValueError: odd"]
    assert feed.error is None


def test_signs_that_nobody_takes_are_dropped():
    feed = TopFeed(table)
    with pytest.raises(RuntimeError, match="nothing was answered"):
        assert feed.newest
    for _ in range(70_000):
        feed._ring()  # type: ignore[reportPrivateUsage]
    feed.clear()


# -- the terminal


class Terminal:
    """A pseudo-terminal whose other side this test holds; `sys.stdin` and `sys.stdout` are on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.master, self.slave = os.openpty()
        termios.tcsetwinsize(self.slave, (24, 80))
        self._patch = monkeypatch
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        self.before = termios.tcgetattr(self.slave)
        self.shown = ""

    def take(self) -> None:
        """Put the standard streams there; in the test itself, as pytest exchanges them between setup and call."""
        self._patch.setattr(sys, "stdin", os.fdopen(self.slave, closefd=False))
        self._patch.setattr(sys, "stdout", io.TextIOWrapper(io.FileIO(self.slave, "w", closefd=False)))

    def until(self, text: str) -> None:
        """Read until a text has been drawn."""
        while text not in self.shown:
            self.shown += os.read(self.master, 65536).decode()
        self.shown = self.shown.partition(text)[2]

    def play(self, *scene: tuple[str, bytes | Callable[[], object]]) -> threading.Thread:
        """Wait for each text in turn, then type or do something."""
        self.take()

        def run() -> None:
            for text, do in scene:
                self.until(text)
                if isinstance(do, bytes):
                    os.write(self.master, do)
                else:
                    do()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    made = Terminal(monkeypatch)
    yield made
    os.close(made.master)
    os.close(made.slave)


def test_keys_act_at_once_and_the_end_restores_the_terminal(terminal):
    scene = terminal.play(
        (screen.ENTER, b""), ("s sort: rank", b"s\x1b[B\x1b[5~\x1bOx\x1b[1;5P"), ("sort: phase", b"q")
    )
    screen.show(TopFeed(table))
    scene.join(10)
    terminal.until(screen.LEAVE)
    assert termios.tcgetattr(terminal.slave) == terminal.before
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_resized_terminal_is_drawn_again(terminal):
    def resize() -> None:
        termios.tcsetwinsize(terminal.slave, (5, 30))
        os.kill(os.getpid(), signal.SIGWINCH)

    scene = terminal.play(("\x1b[24;1H", resize), ("\x1b[5;1H\x1b[2mq quit", b"q"))
    screen.show(TopFeed(table))
    scene.join(10)


def test_a_terminal_without_a_size_has_the_usual_one(terminal):
    terminal.take()
    termios.tcsetwinsize(terminal.slave, (0, 0))
    assert screen.TopScreen().size() == (80, 24)


def test_colours_are_left_out_where_they_are_not_wanted(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    scene = terminal.play(("s sort: rank", b"q"))
    screen.show(TopFeed(table))
    scene.join(10)
    assert not screen.TopScreen().coloured


def test_a_stop_gives_the_terminal_back_and_going_on_takes_it_again(terminal, monkeypatch):
    stopped: list[Any] = []

    def stop(number: int) -> None:
        stopped.append((number, signal.getsignal(number), termios.tcgetattr(terminal.slave) == terminal.before))
        os.kill(os.getpid(), signal.SIGCONT)

    monkeypatch.setattr(screen.signal, "raise_signal", stop)
    tell = lambda: os.kill(os.getpid(), signal.SIGTSTP)  # noqa: E731 - as a terminal does for Ctrl-Z
    scene = terminal.play(("s sort: rank", tell), (screen.LEAVE, b""), (screen.ENTER, b""), ("s sort: rank", b"q"))
    screen.show(TopFeed(table))
    scene.join(10)
    assert stopped == [(signal.SIGTSTP, signal.SIG_DFL, True)]


def test_a_signal_that_ends_restores_the_terminal_first(terminal, monkeypatch):
    def end(number: int) -> None:
        assert termios.tcgetattr(terminal.slave) == terminal.before
        raise SystemExit(number)

    monkeypatch.setattr(screen.signal, "raise_signal", end)
    scene = terminal.play(("s sort: rank", lambda: os.kill(os.getpid(), signal.SIGTERM)))
    with pytest.raises(SystemExit, match="15"):
        screen.show(TopFeed(table))
    scene.join(10)
    terminal.until(screen.LEAVE)


def test_a_terminal_that_is_gone_ends_the_display(terminal, monkeypatch):
    def gone(_self: screen.TopScreen) -> list[str]:
        raise EOFError

    monkeypatch.setattr(screen.TopScreen, "read_keys", gone)
    scene = terminal.play(("s sort: rank", b"x"))
    screen.show(TopFeed(table))
    scene.join(10)


def test_the_end_of_the_input_is_told_from_keys(monkeypatch, terminal):
    terminal.take()
    made = screen.TopScreen()

    def nothing(_fd: int, _size: int) -> bytes:
        return b""

    monkeypatch.setattr(screen.os, "read", nothing)
    with pytest.raises(EOFError):
        made.read_keys()


def test_a_first_question_without_an_answer_is_the_error(terminal):
    def ask() -> TopTable:
        raise NotFoundError("no job")

    terminal.take()
    with pytest.raises(NotFoundError, match="no job"):
        screen.show(TopFeed(ask))


# -- the command


def store(**more: Any) -> RegistryEntry:
    record = registry.register(RegistryEntry("ppo", UID, str(registry.folder_of("ppo", UID)), started=1.0))
    (record.folder / "status.json").write_text(json.dumps(status(**{"phase": "Succeeded", **more})))
    return record


@pytest.mark.usefixtures("home")
def test_a_pipe_gets_one_table_and_the_end(capsys):
    store(roles=[])
    assert main.run(["top", "ppo"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["w/2", "Failed", "-", "-", "-", "-", "-", "1", "-"]
    assert main.run(["top"]) == 0
    assert "ppo   Succeeded" in capsys.readouterr().out
    assert main.run(["top", "nothing"]) == 3
    assert main.run(["top", "ppo", "-A"]) == 2


@pytest.mark.usefixtures("home")
def test_on_a_terminal_the_command_shows_a_page_until_q(terminal):
    store(roles=[])
    scene = terminal.play(("w/2", b"q"))
    assert main.run(["top", "ppo"]) == 0
    scene.join(10)


def test_on_a_cluster_primemaster_tells_the_ranks(kube, dljob):
    add_job(kube, phase="Running", roles=[{"name": "worker", "ready": 2, "desired": 2}])
    code, out, err = dljob("top", "hello", "-n", "team")
    assert (code, out.splitlines()[-1].split()[:3], err) == (0, ["worker", "2", "2"], "")
    add_head(kube)
    kube.head["status"] = lambda query: status(phase="Old") if query["ranks"] else {}
    code, out, _ = dljob("top", "hello", "-n", "team")
    assert (code, "w/1   Ready" in out, "Old" in out) == (0, True, False)


def test_the_command_ends_by_a_signal_with_the_terminal_restored(home):
    store(roles=[])
    master, slave = os.openpty()
    before = termios.tcgetattr(slave)
    env = {**os.environ, "DLJOB_HOME": str(home), "TERM": "xterm"}
    command = [sys.executable, "-m", "dljob.cli", "top", "ppo"]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=subprocess.PIPE, env=env) as process:
        seen = b""
        while b"sort: rank" not in seen:
            seen += os.read(master, 65536)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM
        assert termios.tcgetattr(slave) == before
        while screen.LEAVE.encode() not in seen:
            seen += os.read(master, 65536)
    os.close(master)
    os.close(slave)
