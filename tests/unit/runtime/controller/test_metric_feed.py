"""Metrics on their way to the sinks' process: which are sent, and what a process that fails or hangs costs: rows."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

from master_shell_kit import end_all, ended, running, until

from dljob.runtime.controller import metric_feed
from dljob.runtime.controller.metric_feed import DriverMetrics, MetricFeed
from dljob.runtime.process.messages import Heartbeat, JobInfo

COPY = """
import os, sys
open(sys.argv[1] + '/rows', 'a').write(sys.stdin.read())
open(sys.argv[1] + '/nice', 'w').write(str(os.getpriority(os.PRIO_PROCESS, 0)))
"""
SAYS = """
import json, sys
print("not JSON")
print(json.dumps({"sink": "s", "said": "failed"}), flush=True)
sys.stdin.read()
"""
DEAF = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"


def feed_of(tmp_path: Path, program: str, said: list[str]) -> MetricFeed:
    info = JobInfo("0123456789", "j", str(tmp_path), "dljob", "m", 30, 0.2, "/code", (("w", 1),))
    driver = DriverMetrics("w", frozenset({"loss"}))
    return MetricFeed(info, driver, said.append, (sys.executable, "-c", program, str(tmp_path)))


def test_declared_metrics_of_the_lowest_rank_of_the_driver_role_are_chosen():
    driver = DriverMetrics("w", frozenset({"loss", "reward"}))
    assert driver.chosen("other", 0, (1, 5, {"loss": 1.0})) == {}
    assert driver.chosen("w", 2, (1, 5, {"lr": 1.0})) == {}
    assert driver.chosen("w", 2, (1, 5, {"lr": 1.0, "loss": 2.0})) == {"loss": 2.0}
    assert driver.chosen("w", 1, (1, 5, {"loss": 3.0})) == {"loss": 3.0}
    assert driver.chosen("w", 2, (1, 6, {"loss": 4.0})) == {}


def test_a_row_that_comes_again_is_sent_once():
    driver = DriverMetrics("w", frozenset({"loss"}))
    assert driver.chosen("w", 0, (1, 5, {"loss": 1.0}))
    assert not driver.chosen("w", 0, (1, 5, {"loss": 1.0}))
    assert driver.chosen("w", 0, (1, 5, {"loss": 2.0}))
    assert driver.chosen("w", 0, (2, 5, {"loss": 2.0}))


def test_all_rows_arrive_before_the_process_ends(tmp_path):
    said = list[str]()
    feed = feed_of(tmp_path, COPY, said)
    feed.put("w", 0, (1, 5, {"loss": 1.5}), 1000.00049)
    feed.put("w", 0, (1, 6, {"loss": float("inf"), "other": 1.0}), 1000.5)
    feed.put("w", 0, (1, 7, {"other": 1.0}), 1001.0)
    feed.close()
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert rows == [[1, 5, 1000.0, {"loss": 1.5}], [1, 6, 1000.5, {"loss": float("inf")}]]
    assert ((tmp_path / "nice").read_text(), said) == (str(metric_feed.NICENESS), [])


def test_what_the_process_reports_is_told(tmp_path):
    said = list[str]()
    feed_of(tmp_path, SAYS, said).close()
    assert said == ["metric sink s: failed"]


def test_a_process_that_cannot_start_is_told(tmp_path):
    said = list[str]()
    feed_of(tmp_path / "gone", COPY, said).close()
    assert said[0].startswith("the process of the metric sinks could not be started: ")


def test_a_process_that_ends_early_is_told(tmp_path):
    said, told = list[str](), threading.Event()

    class Heard(list[str]):
        def append(self, text: str, /) -> None:
            said.append(text)
            told.set()

    feed = feed_of(tmp_path, "", Heard())
    step = 0
    while not told.is_set():
        step += 1
        feed.put("w", 0, (1, step, {"loss": 1.0}), 0.0)
        feed._thread.join(0.01)
    feed.close()
    assert said == ["the process of the metric sinks has ended, and no more metrics are sent; see metrics.log"]


def test_a_process_that_hangs_costs_rows_and_is_killed_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(metric_feed, "ROOM", 5)
    monkeypatch.setattr(metric_feed, "END_S", 0.05)
    said = list[str]()
    feed = feed_of(tmp_path, DEAF, said)
    metrics = {"loss": 1.0}
    for step in range(100_000):
        feed.put("w", 0, (1, step, metrics), 0.0)
    feed.close()
    assert said[0] == "the process of the metric sinks does not read: 5 rows wait, later ones are dropped"
    assert feed._process is not None
    assert feed._process.wait(10) == -9


def test_rows_that_fill_the_room_at_the_end_are_all_sent(tmp_path, monkeypatch):
    monkeypatch.setattr(metric_feed, "ROOM", 3)
    ends, start = threading.Event(), MetricFeed._start

    def late(own: MetricFeed) -> subprocess.Popen[str]:
        ends.wait(60)
        return start(own)

    monkeypatch.setattr(MetricFeed, "_start", late)
    said = list[str]()
    feed = feed_of(tmp_path, COPY, said)
    for step in range(3):
        feed.put("w", 0, (1, step, {"loss": 1.0}), 0.0)
    join = feed._thread.join
    monkeypatch.setattr(feed._thread, "join", lambda seconds: (ends.set(), join(seconds)))
    feed.close()
    assert [json.loads(line)[1] for line in (tmp_path / "rows").read_text().splitlines()] == [0, 1, 2]
    assert said == []


async def test_a_jobs_metrics_reach_the_process_with_the_last_step_of_its_end(world, tmp_path, monkeypatch):
    monkeypatch.setattr(
        metric_feed,
        "PROGRAM",
        (sys.executable, "-c", SAYS.replace("sys.stdin.read()", COPY.replace("sys.argv[1]", f"{str(tmp_path)!r}"))),
    )
    shell = world.master(progressMetrics=["loss"])
    await until(running(shell))
    host = next(iter(shell.state.hosts.values()))
    shell.take_heartbeat(Heartbeat("worker", host.actor, 1, {0: (1, 4, {"loss": 2.0, "lr": 1.0})}))
    assert shell.status()["progress"]["declared"] == ["loss"]
    await until(lambda: any(note["reason"] == "MetricSinkFailed" for note in shell.timeline.after(0)))
    from dljob.master.state.views import Outcome

    end_all(world, Outcome(ok=True, step=5, metrics=(("loss", 1.0),)))
    assert (await ended(world))["phase"] == "Succeeded"
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert [[step, metrics] for _, step, _, metrics in rows] == [[4, {"loss": 2.0}], [5, {"loss": 1.0}]]


def test_the_process_of_the_sinks_imports_nothing_from_the_folder_where_ray_was_started(tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('a file of another user')")
    command = [*metric_feed.PROGRAM, "no order"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "json.decoder.JSONDecodeError" in ended.stderr
