"""What the ranks write, as it is shown while the job runs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from dljob.api import logs
from dljob.cli import live, rank_output
from dljob.cli.progress import View
from dljob.cli.rank_output import MOST_CHARACTERS, MOST_LINES, UNFINISHED_S, RankOutput, Shown, selected
from dljob.errors import UsageError
from dljob.spec.loading.load import parse

START = "[dljob] 10:00:00 w/0 starts, incarnation 1\n"


class Screen:
    """Notes what it is to show."""

    def __init__(self, *, redraws: bool = False) -> None:
        self.redraws = redraws
        self.lines: list[str] = []
        self.unfinished: Sequence[str] = ()
        self.said: list[str] = []

    def output(self, lines: Sequence[str], unfinished: Sequence[str]) -> None:
        self.lines += lines
        self.unfinished = unfinished

    def say(self, text: str) -> None:
        self.said.append(text)


class Scene:
    """A job's folder with logs that grow, and a screen; `turn` looks after so many seconds."""

    def __init__(self, folder: Path, *, redraws: bool = False, roles: frozenset[str] | None = None) -> None:
        self.now = 0.0
        self.screen = Screen(redraws=redraws)
        self.shown = RankOutput(folder, self.screen, roles, lambda: self.now)
        self.folder = folder / "logs"
        self.folder.mkdir()

    def write(self, data: bytes, name: str = "w-0") -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            log.write(data)

    def turn(self, after: float = 0.2) -> list[str]:
        self.now += after
        self.screen.lines = []
        self.shown.turn()
        return self.screen.lines

    def last(self) -> list[str]:
        self.screen.lines = []
        self.shown.finish()
        return self.screen.lines


def test_lines_come_with_their_rank_as_they_are_written(tmp_path):
    scene = Scene(tmp_path)
    scene.write(START.encode() + b"one\ntw")
    scene.write(b"here\n", "serve-3")
    assert scene.turn() == ["[serve/3] here", "[w/0] one"]
    scene.write(b"o\n[dljob] 10:00:09 w/0 starts, incarnation 2, after: killed\n")
    assert scene.turn() == ["[w/0] two", "[w/0] [dljob] 10:00:09 w/0 starts, incarnation 2, after: killed"]
    assert scene.turn() == []
    scene.write(b"no end")
    scene.turn()
    assert scene.last() == ["[w/0] no end"]


def test_only_the_output_of_the_selected_roles_is_shown(tmp_path):
    scene = Scene(tmp_path, roles=frozenset({"w"}))
    scene.write(b"mine\n")
    scene.write(b"other\n", "serve-0")
    assert scene.turn() == ["[w/0] mine"]


def test_of_a_flood_200_lines_a_second_and_rank_are_shown_and_the_rest_is_counted(tmp_path):
    scene = Scene(tmp_path)
    for second in range(2):
        for turn in range(5):
            scene.write(b"".join(b"%d\n" % n for n in range(20_000)))
            scene.write(b"calm\n", "z-0")
            lines = scene.turn()
            assert lines.pop() == "[z/0] calm", "a rank beside it is shown as ever"
            if second and not turn:
                assert lines.pop(0) == "[w/0] [dljob] 99,800 more lines in its log alone"
            assert lines == ([] if turn else [f"[w/0] {n}" for n in range(MOST_LINES)])
    assert scene.last() == ["[w/0] [dljob] 99,800 more lines in its log alone"]


def test_a_line_without_an_end_takes_no_memory_and_shows_its_beginning(tmp_path):
    scene = Scene(tmp_path)
    for _ in range(3):
        scene.write(b"x" * 3_000_000)
        assert scene.turn() == []
    (line,) = scene.screen.unfinished
    assert line == f"[w/0] {'x' * MOST_CHARACTERS} ... ({9_000_000 - MOST_CHARACTERS} more bytes)"
    (rank,) = scene.shown._ranks.values()
    assert len(rank.unfinished) == MOST_CHARACTERS
    scene.write(b"\nnext\n")
    assert scene.turn() == [line, "[w/0] next"]


def test_a_progress_bar_rewrites_its_line(tmp_path):
    scene = Scene(tmp_path, redraws=True)
    scene.write(b"\r10%")
    assert scene.turn() == []
    assert scene.screen.unfinished == ["[w/0] 10%"]
    scene.write(b"\r20%\r30%\r")
    assert scene.turn() == []
    assert scene.screen.unfinished == ["[w/0] 30%"]
    scene.write(b"100%\r\ndone\n")
    assert scene.turn() == ["[w/0] 100%", "[w/0] done"]
    assert scene.screen.unfinished == []


def test_where_nothing_is_drawn_again_an_unfinished_line_comes_now_and_then(tmp_path):
    scene = Scene(tmp_path)
    scene.write(b"loading ...")
    assert scene.turn() == []
    assert scene.turn(UNFINISHED_S) == ["[w/0] loading ..."]
    assert scene.turn(UNFINISHED_S) == [], "nothing new"
    scene.write(b" still")
    assert scene.turn(UNFINISHED_S) == ["[w/0] loading ... still"]


def test_bytes_that_are_no_text_are_shown_as_escapes(tmp_path):
    scene = Scene(tmp_path)
    scene.write(b"\xff\xfe \xe6\x97\n")
    assert scene.turn() == ["[w/0] \\xff\\xfe \\xe6\\x97"]


def test_a_display_that_fails_says_so_and_ends_no_job(tmp_path, monkeypatch):
    screen = Screen()

    def broken(*_: object) -> None:
        raise ValueError("no such log")

    monkeypatch.setattr(logs, "find_logs", broken)
    with RankOutput(tmp_path, screen, None):
        pass
    assert screen.said == ["the ranks' output is not shown any more (ValueError: no such log); see dljob logs"]


def test_the_whole_of_a_log_is_shown_before_the_context_ends(tmp_path):
    scene = Scene(tmp_path)
    with scene.shown:
        scene.write(b"first\nlast")
    assert scene.screen.lines == ["[w/0] first", "[w/0] last"]


JOB = parse(
    {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": "j"},
        "spec": {"roles": [{"name": "trainer", "entrypoint": {"class": "a.b"}}]},
    }
)


def test_quiet_and_roles_select_the_output_that_is_shown():
    assert selected(quiet=False, roles=None) == rank_output.EVERYTHING
    assert selected(quiet=True, roles=None) == rank_output.NOTHING
    assert selected(quiet=False, roles="trainer, rollout,") == Shown(roles=frozenset({"trainer", "rollout"}))
    for quiet, roles in ((True, "trainer"), (False, " , ")):
        with pytest.raises(UsageError):
            selected(quiet=quiet, roles=roles)
    Shown(roles=frozenset({"trainer"})).check(JOB)
    with pytest.raises(UsageError, match="no role 'trainr'") as refused:
        Shown(roles=frozenset({"trainr"})).check(JOB)
    assert "trainer" in refused.value.hint


def test_lines_of_ranks_scroll_above_the_panel():
    panel = live.Panel(View("ppo", phase="Running"))
    out = io.StringIO()
    panel._live.console = Console(file=out, force_terminal=True, width=80)
    with panel:
        panel.output(["[w/0] \x1b[31mred\x1b[0m \x1b[2J"], ["[w/0] 45%"])
    shown = out.getvalue()
    assert "\x1b[31mred" in shown
    assert "\\x1b[2J" in shown
    assert "\x1b[2J" not in shown
    assert shown.rindex("red") < shown.rindex("ppo"), "the panel stays below"
    assert "[w/0] 45%" in shown


def test_lines_of_a_cluster_are_as_few():
    lines = [logs.LogLine("w", 0, f"\r{n}%\r{n}") for n in range(MOST_LINES + 2)] + [logs.LogLine("z", 0, "x" * 9999)]
    *flood, calm, told = rank_output.few(lines)
    assert flood == [f"[w/0] {n}" for n in range(MOST_LINES)]
    assert calm == f"[z/0] {'x' * MOST_CHARACTERS}"
    assert told == "[w/0] [dljob] 2 more lines in its log alone"


def test_a_line_that_got_its_end_stands_once():
    panel = live.Panel(View("ppo", phase="Running"))
    out = io.StringIO()
    panel._live.console = Console(file=out, force_terminal=True, width=80)
    panel._live.auto_refresh = False
    with panel:
        panel.output([], ["[w/0] 45%"])
        panel.output(["[w/0] 100%"], [])
        assert "45%" not in out.getvalue()[out.getvalue().index("100%") :]
