"""Each sink gets its rows in order; after a way back it voids the later ones, or gets none twice; a hang costs rows."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dljob.runtime.sinks import feeding
from dljob.runtime.sinks.feeding import (
    POSITION,
    MetricRow,
    SinkFeeder,
    SinkPosition,
    follow,
    load,
    redacted,
    save,
    went_back,
)
from dljob.runtime.sinks.sink import SinkRun

LIFE = (1, 1)


class Plain:
    """A sink that cannot rewrite."""

    def __init__(self, run: SinkRun) -> None:
        self.run, self.rows, self.closed = run, list[Any](), False

    def write(self, step: int, metrics: Mapping[str, float], at: float) -> None:
        self.rows.append(step)

    def close(self) -> None:
        self.closed = True


class Rewinding(Plain):
    def rewind(self, step: int) -> None:
        self.rows.append(f"from {step}")


def row(step: int, life: tuple[int, int] = LIFE) -> MetricRow:
    return MetricRow(life, step, 0.5, {"loss": 1.0})


def fed(tmp_path: Path, kind: Any, *rows: MetricRow) -> tuple[Any, list[str]]:
    """The sink after these rows, and what was said."""
    made, said = list[Any](), list[str]()

    def opened(run: SinkRun) -> Any:
        made.append(kind(run))
        return made[0]

    run = SinkRun("j-01234567", "j", "0123456789", 1, tmp_path / "s")
    feeder = SinkFeeder("s", lambda: opened, run, lambda name, text: said.append(f"{name} {text}"))
    for one in rows:
        feeder.put(one)
    feeder.end()
    feeder.thread.start()
    feeder.thread.join(10)
    assert not feeder.thread.is_alive()
    return made[0] if made else None, said


@pytest.mark.parametrize(
    ("last", "now", "back"),
    [
        (None, row(1), False),
        (SinkPosition(LIFE, 5, 5), row(6), False),
        (SinkPosition(LIFE, 5, 5), row(6, (1, 2)), False),
        (SinkPosition(LIFE, 5, 5), row(5), False),
        (SinkPosition(LIFE, 5, 5), row(5, (1, 2)), True),
        (SinkPosition(LIFE, 5, 5), row(2, (2, 1)), True),
        (SinkPosition(LIFE, 5, 5), row(4), True),
    ],
)
def test_an_earlier_step_or_the_same_of_a_later_process_is_a_way_back(last, now, back):
    assert went_back(last, now) is back


def test_a_position_keeps_the_highest_step_of_all():
    assert follow(None, row(7)) == SinkPosition(LIFE, 7, 7)
    assert follow(SinkPosition(LIFE, 7, 7), row(3, (1, 2))) == SinkPosition((1, 2), 3, 7)


def test_a_sink_that_can_rewrite_voids_the_later_rows(tmp_path):
    sink, said = fed(tmp_path, Rewinding, row(1), row(2), row(3), row(2, (1, 2)), row(3, (1, 2)), row(3))
    assert (sink.rows, sink.closed, said) == ([1, 2, 3, "from 2", 2, 3], True, [])


def test_a_sink_that_cannot_rewrite_gets_no_step_twice(tmp_path):
    sink, _ = fed(tmp_path, Plain, row(1), row(3), row(2, (1, 2)), row(3, (1, 2)), row(4, (1, 2)))
    assert sink.rows == [1, 3, 4]


def test_the_next_process_goes_on_where_the_last_one_was(tmp_path):
    first, _ = fed(tmp_path, Rewinding, row(1), row(9))
    assert not first.run.resumed
    assert load(tmp_path / "s") == SinkPosition(LIFE, 9, 9)
    later, _ = fed(tmp_path, Rewinding, row(6, (2, 1)), row(7, (2, 1)))
    assert (later.run.resumed, later.rows) == (True, ["from 6", 6, 7])
    plain, _ = fed(tmp_path, Plain, row(9, (2, 1)), row(10, (2, 1)))
    assert plain.rows == [10]


def test_a_position_is_saved_at_most_once_a_second_and_at_the_end(tmp_path, monkeypatch):
    saved = list[int]()
    monkeypatch.setattr(feeding, "save", lambda _, position: saved.append(position.step))
    fed(tmp_path, Plain, row(1), row(2), row(3))
    assert saved == [1, 3]


@pytest.mark.parametrize("text", ["", "{}", '{"life": 1}', '{"life": ["a", 1], "step": 1, "highest": 1}'])
def test_a_position_that_cannot_be_read_is_none(tmp_path, text):
    assert load(tmp_path) is None
    (tmp_path / POSITION).write_text(text)
    assert load(tmp_path) is None
    save(tmp_path, SinkPosition(LIFE, 1, 2))
    assert json.loads((tmp_path / POSITION).read_text()) == {"life": [1, 1], "step": 1, "highest": 2}


def test_a_sink_that_is_not_configured_takes_rows_and_says_nothing(tmp_path):
    assert fed(tmp_path, lambda run: None, row(1)) == (None, [])


def test_a_sink_that_fails_is_reported_once_and_gets_no_more_rows(tmp_path):
    class Failing(Plain):
        def write(self, step: int, metrics: Mapping[str, float], at: float) -> None:
            raise ValueError("no such project")

    _, said = fed(tmp_path, Failing, row(1), row(2))
    assert said == ["s failed and gets no more rows: ValueError: no such project"]


def test_a_sink_that_hangs_costs_rows_and_never_its_caller(tmp_path, monkeypatch):
    monkeypatch.setattr(feeding, "ROOM", 3)
    hung, let_go, said = threading.Event(), threading.Event(), list[str]()

    class Hanging(Plain):
        def write(self, step: int, metrics: Mapping[str, float], at: float) -> None:
            hung.set()
            let_go.wait(60)

    run = SinkRun("j-01234567", "j", "0123456789", 1, tmp_path)
    feeder = SinkFeeder("s", lambda: Hanging, run, lambda name, text: said.append(text))
    feeder.thread.start()
    feeder.put(row(0))
    assert hung.wait(10)
    for step in range(1, 9):
        feeder.put(row(step))
    feeder.end()
    assert said == ["is too slow or hangs: 3 rows wait, and later ones are dropped"]
    let_go.set()


def test_a_slow_sink_writes_all_rows_that_wait_at_the_end_and_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(feeding, "ROOM", 3)
    begun, let_go, made = threading.Event(), threading.Event(), list[Plain]()

    class Slow(Plain):
        def __init__(self, run: SinkRun) -> None:
            super().__init__(run)
            made.append(self)

        def write(self, step: int, metrics: Mapping[str, float], at: float) -> None:
            begun.set()
            let_go.wait(60)
            super().write(step, metrics, at)

    run = SinkRun("j-01234567", "j", "0123456789", 1, tmp_path)
    feeder = SinkFeeder("s", lambda: Slow, run, lambda name, text: None)
    feeder.thread.start()
    feeder.put(row(0))
    assert begun.wait(10)
    for step in range(1, 4):
        feeder.put(row(step))
    feeder.end()
    let_go.set()
    feeder.thread.join(10)
    assert not feeder.thread.is_alive()
    assert (made[0].rows, made[0].closed) == ([0, 1, 2, 3], True)
    assert load(tmp_path) == SinkPosition(LIFE, 3, 3)


def test_a_position_that_cannot_be_saved_is_said_once_and_costs_the_sink_nothing(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(feeding, "save", full)
    monkeypatch.setattr(feeding, "SAVE_S", 0.0)
    sink, said = fed(tmp_path, Plain, row(1), row(2))
    assert (sink.rows, sink.closed) == ([1, 2], True)
    assert said == [
        "s goes on, but its position is not saved: No space left on device; another PrimeMaster may give it rows again"
    ]


def test_values_of_secret_variables_and_users_of_urls_are_left_out():
    environment = {"WANDB_API_KEY": "0123abcd", "HF_TOKEN": "t0p!", "PATH": "/bin", "SHORT_KEY": "a"}
    said = "0123abcd t0p! /bin a: https://me:word@host/x failed"
    assert redacted(said, environment) == "*** *** /bin a: https://***@host/x failed"
