"""The guard of deterministic costs: it holds today, at any load, and finds what it is there for."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = str(Path(__file__).parents[2] / "bench")
if BENCH not in sys.path:
    sys.path.append(BENCH)

import guard  # noqa: E402 - found by the path above

from dljob.master.failure import ending  # noqa: E402
from dljob.master.placement import admission  # noqa: E402
from dljob.master.state.state import UnitPhase  # noqa: E402
from dljob.runtime.process.messages import NodeHeartbeat  # noqa: E402

ACCEPTED = guard.json.loads(guard.ACCEPTED.read_text())
pytestmark = pytest.mark.slow  # under coverage nothing costs what it costs


def failing(*rows: str) -> list[str]:
    """The rows that the guard fails."""
    return [line.partition(":")[0] for line in guard.over(guard.settled(rows, ACCEPTED), ACCEPTED)]


def test_scans_of_all_units_on_each_death_are_found(monkeypatch):
    def needed(d):
        placed = (UnitPhase.HELD, UnitPhase.ABSENT)
        return any(ending.has_unfinished_rank(d, name) for name, unit in d.units.items() if unit.phase not in placed)

    def lost(d):
        return tuple(
            name for name, own in d.units.items() if own.phase is UnitPhase.LOST and ending.has_unfinished_rank(d, name)
        )

    monkeypatch.setattr(admission, "needs_room", needed)
    monkeypatch.setattr(admission, "lost_units", lost)
    rows = ["CPU of 8 deaths at 2,000 ranks", "growth of a death from 16 to 2,000 ranks"]
    assert failing(*rows) == rows


def test_a_second_copy_of_each_heartbeat_is_found(monkeypatch):
    once = NodeHeartbeat.unpacked
    monkeypatch.setattr(NodeHeartbeat, "unpacked", lambda data: (once(data), copy.deepcopy(once(data)))[0])
    row = "CPU of 8 heartbeats of 64 hosts"
    assert failing(row) == [row]


def test_a_heavy_import_is_found(monkeypatch, tmp_path):
    (tmp_path / "usercustomize.py").write_text("import http.server, sqlite3, unittest.mock, xmlrpc.server\n")
    (tmp_path / "sitecustomize.py").write_text("import http.server, sqlite3, unittest.mock, xmlrpc.server\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    row = "modules of the command"
    assert failing(row) == [row]


def test_a_row_that_nobody_accepted_fails():
    assert guard.over({"new": 1.0}, {}) == ["new: no value is accepted yet; 1 was measured"]


def test_a_busy_machine_raises_no_alarm():
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        assert failing() == []
    finally:
        for process in busy:
            process.kill()
            process.wait()
