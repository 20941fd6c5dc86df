"""What a host does for the weights of its ranks: it follows channels, has ranks load, and checks what they hold."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from role_kit import role_plan

from dljob.errors import CallError, CallTimeoutError
from dljob.master.state.actions import RankStart
from dljob.plan.serving import ProbePlan, WeightsPlan
from dljob.runtime.process.messages import HostSpec, JobInfo, LoadOrder, LoadResult, NewestVersion
from dljob.runtime.serving.probes import Answer, ProbeTarget
from dljob.runtime.weights.buckets import flat
from dljob.runtime.weights.files import digest, named
from dljob.runtime.weights.model import Version
from dljob.runtime.worker import weights as module
from dljob.runtime.worker.weights import HostWeights, LoadError, differ, newest_of, parse_sums

STATE = {"w": np.arange(4.0)}
INDEX, BUCKETS = flat(STATE, "test")
SUM = digest(named(INDEX, BUCKETS.views_of_all()))
START = RankStart(2, 1, 0, 1, 0)
ORDER = LoadOrder(1, 2, 1, 7, 70.0)
COMMAND = ProbePlan("exec", command=("sh", "-c", 'printf "%s" "$DLJOB_WEIGHTS" > order; test ! -e bad'), timeout_s=20)
SAYS = ProbePlan("exec", command=("sh", "-c", "echo loading >&2; cat sum"), timeout_s=20)
METHOD = ProbePlan("method", path="load", timeout_s=20)


class Channel:
    """A carrier whose keeper has one version; `newer` tells what the test says."""

    def __init__(self) -> None:
        self.version: Version | None = Version("n", 7, INDEX, taken_at=70.0)
        self.buckets: Any = BUCKETS.views_of_all()
        self.tells: list[Any] = []
        self.empty = threading.Event()

    def ask(self, what: str, number: int) -> Version | None:
        assert (what, number) == ("version", 7)
        return self.version

    def fetch(self, version: Version, _timeout: float) -> Any:
        assert version is self.version
        if isinstance(self.buckets, Exception):
            raise self.buckets
        return self.buckets

    def newer(self, _mark: Any, _wait: float, _timeout: float) -> Version | None:
        if not self.tells:
            self.empty.set()
            threading.Event().wait()
        found = self.tells.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


class Ranks:
    """A host that notes news, and whose object has the methods that a test gives it."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.news = threading.Semaphore(0)
        self.methods: dict[str, Any] = {}

    def weights(self, rank: int, incarnation: int, news: NewestVersion | LoadResult) -> None:
        self.said.append((rank, incarnation, news))
        self.news.release()

    def call_method(self, name: str, args: Any) -> Any:
        return self.methods[name](*args)


class Scene:
    """A host with one channel, in a folder of its own."""

    def __init__(self, folder: Path, load: ProbePlan = COMMAND, verify: ProbePlan | None = None, *names: str) -> None:
        self.folder = folder
        job = JobInfo("uid", "job", str(folder), "", "", 10.0, 1.0, str(folder), ())
        plan = WeightsPlan(names or ("policy",), 1, 1, load, verify)
        self.ranks, self.channel = Ranks(), Channel()
        spec = HostSpec(job, role_plan("r", ("module", "serve.py"), weights=plan), 1)
        self.host = HostWeights(spec, plan, self.ranks, lambda _rank: self.find, self.target)
        self.host._carriers = dict.fromkeys(plan.channels, self.channel)  # type: ignore[arg-type]

    def find(self, _address: str) -> None:
        raise AssertionError("nobody looks a keeper up")

    def target(self, rank: int, **env: str) -> ProbeTarget:
        assert rank == 2
        return ProbeTarget("127.0.0.1", {}, {"PATH": "/usr/bin:/bin", **env}, str(self.folder))

    def result(self, order: LoadOrder = ORDER) -> LoadResult:
        self.host.load(order)
        assert self.ranks.news.acquire(timeout=60)
        return self.ranks.said[-1][2]


def test_a_rank_is_told_version_and_files_and_what_it_holds_is_compared(tmp_path):
    scene = Scene(tmp_path, verify=SAYS)
    (tmp_path / "sum").write_text(f"{SUM}\n")
    assert scene.result() == LoadResult(7, 70.0)
    order = json.loads((tmp_path / "order").read_text())
    assert order["version"] == 7
    assert order["channels"]["policy"] == str(tmp_path / "weights" / "r-2" / "policy.safetensors")
    (tmp_path / "order").unlink()
    assert scene.result() == LoadResult(7, 70.0), "an order that is repeated is answered"
    assert not (tmp_path / "order").exists(), "and not carried out"
    (tmp_path / "sum").write_text("0000")
    wrong = scene.result(replace(ORDER, at=71.0))
    assert wrong == LoadResult(7, 71.0, f"channel policy: it holds '0000', {SUM} was published")
    (tmp_path / "sum").unlink()
    assert scene.result(replace(ORDER, at=72.0)).problem.startswith("not verified: command sh -c")
    (tmp_path / "bad").touch()
    assert "exit code 1" in scene.result(replace(ORDER, incarnation=2)).problem


def test_a_method_gets_states_and_returns_the_checksum(tmp_path):
    scene = Scene(tmp_path, METHOD, replace(METHOD, path="sum"), "a", "b")
    got: list[Any] = []
    scene.ranks.methods = {
        "load": lambda version, states: got.append((version, states)),
        "sum": lambda: {"a": SUM, "b": SUM},
    }
    assert scene.result() == LoadResult(7, 70.0)
    assert (got[0][0], got[0][1]["b"]["w"].tolist()) == (7, [0.0, 1.0, 2.0, 3.0])
    scene.ranks.methods["sum"] = lambda: {"a": SUM}
    assert scene.result(replace(ORDER, at=71.0)).problem.startswith("channel b: it holds ")
    scene.ranks.methods["load"] = lambda *_: 1 / 0
    assert scene.result(replace(ORDER, at=72.0)).problem == "load raised ZeroDivisionError: division by zero"
    plain = Scene(tmp_path, METHOD)
    plain.ranks.methods = {"load": lambda *_: None}
    plain.channel.version = replace(plain.channel.version, index=flat({"step": 7}, "t")[0])
    assert plain.result().problem.startswith("channel policy: step is int, which no file of weights holds")


def test_a_rank_is_behind_what_its_caller_has_published_until_it_has_loaded_that(tmp_path, monkeypatch):
    scene = Scene(tmp_path, METHOD)
    scene.ranks.methods = {"load": lambda *_: None}
    host = scene.host
    assert host.why_behind(2, 1, [("policy", (7, 70.0))]) == "it holds no version, and its caller has published 7"
    assert scene.result() == LoadResult(7, 70.0)
    assert not host.why_behind(2, 1, [("policy", (7, 70.0))])
    assert not host.why_behind(2, 1, [("policy", (8, 80.0))]), "maxLag is 1"
    assert host.why_behind(2, 1, [("policy", (9, 90.0))]) == "it holds version 7, and its caller has published 9"
    assert host.why_behind(2, 1, [("policy", (3, 90.0))]), "its publisher has gone back"
    assert not host.why_behind(2, 1, [("policy", (5, 50.0))]), "published before what it holds"
    assert host.why_behind(2, 2, [("policy", (7, 70.0))]), "its next process has loaded nothing"
    scene.channel.version = None
    assert scene.result(replace(ORDER, at=95.0)).untouched
    assert not host.why_behind(2, 1, [("policy", (8, 80.0))]), "a load that did not begin leaves what it holds"
    assert host.why_behind(2, 1, [("policy", (9, 99.0))])
    monkeypatch.setattr(module, "LEARN_S", 0.0)
    assert not host.why_behind(2, 1, [("policy", (9, 99.0))]), "a version that is lost holds no calls for ever"


def test_a_caller_counts_a_version_only_once_it_has_published_all_channels(tmp_path):
    host = Scene(tmp_path, METHOD, None, "a", "b").host
    assert not host.why_behind(2, 1, [("a", (7, 70.0))])
    assert not host.why_behind(2, 1, [("a", (7, 70.0)), ("b", (6, 60.0))])
    assert host.why_behind(2, 1, [("a", (7, 70.0)), ("b", (7, 71.0)), ("other", (1, 72.0))])


@pytest.mark.parametrize(
    ("version", "buckets", "said"),
    [
        (None, None, "channel policy has version 7 no more"),
        (Version("n", 7, INDEX), None, "channel policy lost version 7"),
        (Version("n", 7, INDEX), CallError("damaged", role="r", rank=2), "channel policy: damaged"),
        (Version("n", 7, flat({"step": 7}, "t")[0]), [], "channel policy: step is int, which no file of weights holds"),
    ],
)
def test_what_does_not_arrive_leaves_the_rank_untouched(tmp_path, version, buckets, said):
    scene = Scene(tmp_path)
    scene.channel.version, scene.channel.buckets = version, buckets
    result = scene.result()
    assert result.problem.startswith(said)
    assert result.untouched


def test_a_method_that_does_not_return_in_time_is_a_failed_load(tmp_path):
    short = replace(METHOD, timeout_s=0)
    scene = Scene(tmp_path, short)
    goes_on, called = threading.Event(), []

    def slow(version: int, _states: Any) -> None:
        called.append(version)
        assert goes_on.wait(60)

    scene.ranks.methods = {"load": slow}
    assert scene.result().problem == "load did not return within 0 s"
    assert scene.result(replace(ORDER, at=71.0)).problem == "load of an earlier version has not returned yet"
    goes_on.set()
    assert scene.host._method is not None
    scene.host._method[2].result(60)
    scene.host._plan = replace(scene.host._plan, load=METHOD)
    assert scene.result(replace(ORDER, at=72.0)) == LoadResult(7, 72.0)
    assert called == [7, 7], "none was called while another was at it"


def test_an_error_of_the_host_is_told_and_a_load_runs_once(tmp_path, monkeypatch):
    scene = Scene(tmp_path, METHOD)
    asked, goes_on = threading.Event(), threading.Event()

    def slow(*_: Any) -> None:
        asked.set()
        assert goes_on.wait(60)

    scene.ranks.methods = {"load": slow}
    scene.host.load(ORDER)
    assert asked.wait(60)
    scene.host.load(ORDER)  # repeated by a new PrimeMaster
    scene.ranks.methods = {"load": lambda *_: None}
    assert scene.result(replace(ORDER, incarnation=2)) == LoadResult(7, 70.0), "the next process does not wait"
    goes_on.set()
    monkeypatch.setattr(module, "load_state", lambda *_: {}["planted"])
    assert scene.result(replace(ORDER, at=71.0)).problem == "KeyError: 'planted'"
    assert [who for *who, _ in scene.ranks.said] == [[2, 2], [2, 1]], "the first is of a process that is gone"


def test_channels_are_followed_and_the_newest_is_told_once(tmp_path, monkeypatch):
    scene = Scene(tmp_path)
    scene.host._carriers = {}
    channel = scene.channel
    monkeypatch.setattr(module, "RayCarrier", lambda _client, _find: channel)
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    first = Version("n", 7, INDEX, taken_at=70.0, first=7)
    late = CallTimeoutError("no answer", role="", rank=0)
    channel.tells = [late, RuntimeError("keeper"), None, first, first, replace(first, version=8, taken_at=80.0)]
    scene.host.started(START)
    scene.host.started(START)
    assert channel.empty.wait(60)
    assert scene.ranks.said == [(2, 1, NewestVersion(7, 70.0, 0.0, 7)), (2, 1, NewestVersion(8, 80.0, 0.0, 7))]


def test_a_version_counts_once_all_channels_have_it():
    def seen(*parts: tuple[int, float]) -> list[Version]:
        return [Version("n", number, b"", taken_at=at, since=at - 1, first=number) for number, at in parts]

    def by(publisher: str, life: int) -> list[Version]:
        return [replace(one, by=(publisher, life)) for one in seen((5, 1.0))]

    assert newest_of([seen((5, 1.0)), []]) is None
    assert newest_of([seen((5, 1.0)), seen((4, 1.0))]) is None
    assert newest_of([seen((5, 1.0), (6, 3.0)), seen((4, 1.0), (5, 2.0))]) == NewestVersion(5, 2.0, 1.0, 5)
    assert newest_of([seen((9, 1.0), (3, 5.0))]) == NewestVersion(3, 5.0, 4.0, 3), "the newest, not the largest"
    newest = newest_of([by("t/0", 2), by("c/0", 1), by("t/0", 2), seen((5, 1.0))])
    assert newest is not None
    assert newest.by == (("c/0", 1), ("t/0", 2))


def test_a_checksum_is_read_from_json_or_text():
    assert parse_sums(Answer(ok=True, words="", body=b'{"a": "x"}')) == {"a": "x"}
    assert parse_sums(Answer(ok=True, words="", body=b"loading\nx\n")) == "x"
    assert parse_sums(Answer(ok=True, words="")) == ""
    differ("x", {"a": "x"})
    differ({"a": "x", "b": "y"}, {"a": "x", "b": "y"})
    for said in ("x", 7, {"a": "x"}):
        with pytest.raises(LoadError):
            differ(said, {"a": "x", "b": "y"})
