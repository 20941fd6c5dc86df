"""The host's loop: orders, the program's end, jobs that are kept, and the one job that ends it."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dljob.api.local import host as hosts
from dljob.api.local.host import LocalJob, LocalJobs, serve
from dljob.errors import PlacementError
from dljob.plan.model import MachineGroup
from dljob.runtime.backend.machine import EmbeddedNode, lay_out_beside


class Job:
    """A job whose record says that it is over once it was stopped or ended."""

    def __init__(self) -> None:
        self.over = self.stopped = False
        self.record = self
        self.folder = Path.cwd()

    def stop(self) -> None:
        self.over = self.stopped = True


class Script:
    """Orders as a test gives them: bytes, or a call; after the last, the program is gone."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.closed = False

    def wait(self, _seconds: float) -> bytes | None:
        step = self.steps.pop(0) if self.steps else None
        self.closed = self.closed or (not self.steps and step is None)
        if callable(step):
            step()
            return None
        return step


class Tame(LocalJobs):
    """A host that starts no Ray."""

    def submit(self, order: Any, _stack: ExitStack) -> dict[str, Any]:
        if order["name"] == "large":
            raise PlacementError("too large", hint="less")
        job: Any = Job()
        self.served = True
        self.jobs.append(LocalJob(job, [], order["keep"]))
        return {"uid": order["name"], "nodes": 1}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    said: list[Any] = []
    monkeypatch.setattr(hosts, "_answer", said.append)
    return said


def order(name: str, *, keep: bool = False) -> bytes:
    return json.dumps({"do": "submit", "name": name, "keep": keep}).encode()


def run(host: LocalJobs, *steps: Any) -> None:
    script: Any = Script(*steps)
    serve(host, script, ExitStack())


def test_a_host_of_one_job_ends_with_it(answers: list[Any]) -> None:
    host = Tame(once=True)
    run(host, order("a"), lambda: setattr(host.jobs[0].handle, "over", True), lambda: pytest.fail("goes on"))
    assert answers == [{"uid": "a", "nodes": 1}]


def test_a_host_of_several_jobs_waits_for_more(answers: list[Any]) -> None:
    host = Tame(once=False)
    jobs: list[Any] = []
    run(
        host,
        order("a"),
        lambda: jobs.append(host.jobs[0].handle),
        lambda: setattr(jobs[0], "over", True),
        order("b"),
        lambda: jobs.append(host.jobs[0].handle),
    )
    assert [answer["uid"] for answer in answers] == ["a", "b"]
    assert [job.stopped for job in jobs] == [False, True]  # the program ended, and b with it


def test_close_stops_what_runs_but_for_what_is_kept(answers: list[Any]) -> None:
    host = Tame(once=False)
    jobs: list[Any] = []
    run(
        host,
        order("a"),
        order("b", keep=True),
        lambda: jobs.extend(each.handle for each in host.jobs),
        b'{"do": "close"}',
        lambda: None,
        lambda: setattr(jobs[1], "over", True),
    )
    assert [job.stopped for job in jobs] == [True, False]


def test_a_job_to_be_kept_whose_program_was_interrupted_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_pipe(_answer: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(hosts, "_answer", break_pipe)
    host, jobs = Tame(once=True), list[LocalJob]()

    def look() -> None:
        jobs.extend(host.jobs)
        assert not jobs[0].keep, "its end would be waited for"

    run(host, order("large"), order("a", keep=True), look)
    assert [job.handle.record.over for job in jobs] == [True]


def test_a_refusal_is_answered_and_the_host_goes_on(answers: list[Any]) -> None:
    run(Tame(once=False), order("large"), b'{"do": "submit", "nam": 1}', order("a"))
    assert answers[0] == {"error": "PlacementError", "message": "too large", "hint": "less"}
    assert answers[1]["error"] == "UnreachableError"
    assert "KeyError" in answers[1]["message"]
    assert answers[2]["uid"] == "a"


def test_a_ray_that_died_ends_the_host(answers: list[Any]) -> None:
    host = Tame(once=False)
    run(host, order("a"), lambda: host.deaths.append("gcs_server ended"), lambda: pytest.fail("goes on"))
    assert answers == [{"uid": "a", "nodes": 1}]


def group(name: str = "any", replicas: int = 1, **resources: float) -> MachineGroup:
    amounts = tuple((kind, int(amount * 10_000)) for kind, amount in resources.items())
    return MachineGroup(name, replicas, amounts, (("dljob.io/node-group", name),))


def test_a_later_job_takes_idle_machines_of_its_shape() -> None:
    _, first = lay_out_beside([group(replicas=2, CPU=2)], {}, {}, idle=[], busy=[])
    taken, new = lay_out_beside([group(replicas=3, CPU=2)], {}, {}, idle=first, busy=[])
    assert taken == first
    assert [node.resources for node in new] == [{"CPU": 2.0}]
    assert lay_out_beside([group(CPU=1)], {}, {}, idle=first, busy=[])[0] == []
    assert lay_out_beside([group(CPU=2)], {}, {}, idle=[], busy=first)[0] == []


def test_devices_of_other_jobs_are_not_given_twice() -> None:
    here = {"NPU": ("0", "1", "2")}
    _, first = lay_out_beside([group(NPU=2)], {}, here, idle=[], busy=[])
    _, (second,) = lay_out_beside([group("b", NPU=1)], {}, here, idle=[], busy=first)
    assert second.visible == {"ASCEND_RT_VISIBLE_DEVICES": "2"}
    with pytest.raises(PlacementError, match="1 are missing"):
        lay_out_beside([group("b", NPU=2)], {}, here, idle=[], busy=first)


def test_a_job_whose_folder_is_deleted_is_over(tmp_path: Path) -> None:
    host, job = LocalJobs(once=True, served=True), Job()
    job.folder = tmp_path / "deleted"
    host.jobs.append(LocalJob(job, [], keep=False))  # type: ignore[arg-type]
    host.look()
    assert host.done


def test_machines_are_counted_over_all_jobs() -> None:
    held = [EmbeddedNode(f"n-{i}", {}, {}, {}) for i in range(7)]
    assert len(lay_out_beside([group(CPU=1)], {}, {}, idle=[], busy=held)[1]) == 1
    with pytest.raises(PlacementError, match="2 more nodes, this embedded Ray has 7 of at most 8"):
        lay_out_beside([group(replicas=2, CPU=1)], {}, {}, idle=[], busy=held)


def test_the_process_of_a_host_ends_well_when_its_program_is_gone() -> None:
    done = subprocess.run([sys.executable, "-m", hosts.__name__, "--once"], stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0
