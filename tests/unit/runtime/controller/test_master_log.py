"""PrimeMaster's log: what a batch decided, written by a thread, and read again in words."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from dljob.api import master_log as reader
from dljob.errors import NotFoundError
from dljob.master.state import actions as ac
from dljob.master.state import events as ev
from dljob.master.state.state import Step
from dljob.master.state.views import HostId
from dljob.runtime.controller.decisions import MOST_REASONS, Decision, decided, entries
from dljob.runtime.controller.master_log import MasterLog

HOST = HostId("w", 0)


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.getLogger("dljob.test")
    yield made
    for handler in made.handlers:
        handler.close()


def test_a_step_that_leads_to_nothing_is_no_decision():
    tick = ev.Tick()
    assert decided(tick, Step(None)) is None  # type: ignore[arg-type]
    note = ac.Note("JobRunning", "job", "all ranks are ready", "", None)
    assert decided(tick, Step(None, (note,), "JobRunning job")) == Decision("Tick", (), "JobRunning job")  # type: ignore[arg-type]
    kill = ac.KillHost(HOST, 1, "")
    assert decided(tick, Step(None, (note, kill))) == Decision("Tick", ("KillHost",), "")  # type: ignore[arg-type]


def test_steps_without_a_reason_are_counted():
    ready = Decision("HostReady", ("StartRanks",), "")
    assert list(entries([ready, ready, Decision("Tick", ("KillHost", "SpawnHost"), "why")])) == [
        ("why", {"event": "Tick", "actions": {"KillHost": 1, "SpawnHost": 1}}),
        ("", {"event": "HostReady", "steps": 2, "actions": {"StartRanks": 2}}),
    ]


def test_a_batch_of_many_deaths_has_few_entries():
    lost = [Decision("HostLost", ("KillHost",), f"{n} died") for n in range(1000)]
    said = list(entries(lost))
    assert [message for message, _ in said] == [*(f"{n} died" for n in range(MOST_REASONS)), ""]
    rest = 1000 - MOST_REASONS
    assert said[-1][1] == {"event": "HostLost", "steps": rest, "actions": {"KillHost": rest}}


def test_entries_of_the_masters_log_are_read_in_words(tmp_path, logger):
    log = MasterLog(tmp_path, logger)
    logger.info("a rule", extra={"fields": {"event": "HostLost", "actions": {"KillHost": 1, "SpawnHost": 2}}})
    logger.info("", extra={"fields": {"event": "HostReady", "steps": 3, "actions": {"StartRanks": 3}}})
    try:
        raise ValueError("bad")
    except ValueError:
        logger.exception("it is tried again")
    log.close()
    log.close()
    lost, ready, error = list(reader.read(tmp_path))
    assert lost.partition(" ")[2] == "HostLost -> KillHost, SpawnHost x2: a rule"
    assert ready.partition(" ")[2] == "HostReady x3 -> StartRanks x3"
    assert error.partition(" ")[2].startswith("error: it is tried again\nTraceback (most recent call last):\n")
    assert error.endswith("ValueError: bad")
    assert list(reader.read(tmp_path, tail=1)) == [error]
    assert logger.handlers == []
    raw = [json.loads(line) for line in (tmp_path / "logs" / "master.log").read_text().splitlines()]
    assert raw[0]["logger"] == "dljob.test"


def test_the_masters_log_is_read_since_a_moment(tmp_path):
    (tmp_path / "logs").mkdir()
    older, newer = (f'{{"time": "2026-01-01T00:00:0{n}.500Z", "level": "info", "message": "m{n}"}}\n' for n in (1, 3))
    (tmp_path / "logs" / "master.log.1").write_text(older)
    (tmp_path / "logs" / "master.log").write_text(newer + "no json\n[1]\n")
    assert list(reader.read(tmp_path)) == [
        "2026-01-01T00:00:01.500Z m1",
        "2026-01-01T00:00:03.500Z m3",
        "no json",
        "[1]",
    ]
    assert next(reader.read(tmp_path, since=1767225602.0)) == "2026-01-01T00:00:03.500Z m3"
    over = iter([False, True])
    followed = reader.follow(tmp_path, lambda: next(over), since=1767225602.0)
    assert next(followed) == "2026-01-01T00:00:03.500Z m3"
    assert list(followed) == ["no json", "[1]"]
    assert list(reader.follow(tmp_path, lambda: True, tail=1)) == ["[1]"]


def test_a_folder_that_takes_no_log_leaves_warnings_on_stderr(tmp_path, logger, capfd):
    (tmp_path / "file").write_text("")
    log = MasterLog(tmp_path / "file", logger)
    logger.warning("seen")
    logger.info("not seen")
    log.close()
    assert "WARNING dljob.test: seen" in capfd.readouterr().err
    with pytest.raises(NotFoundError, match="no log of PrimeMaster"):
        reader.read(tmp_path)
