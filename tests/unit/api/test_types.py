"""What pyright says of programs that use dljob: nothing of right ones, and each wrong call by its line."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import dljob
from dljob.runtime.rpc import rpc
from dljob.runtime.worker import typed

ROLLOUT = """
from dljob import Worker, rpc

class Rollout(Worker):
    @rpc(dispatch="shard", collect="concat", idempotent=True)
    def generate(self, prompts: list[str], n: int = 1) -> list[str]:
        return prompts * n

    @rpc
    async def load(self, version: int) -> str:
        return str(version)

    @rpc(dispatch="each")
    def seed(self, seed: int) -> int:
        return len(self.generate(["a"], n=2)) + seed

class Careful(Rollout):
    @rpc
    async def load(self, version: int) -> str:
        return await super().load(version)
"""
RIGHT = """
from __future__ import annotations
from typing import TYPE_CHECKING, Any, assert_type
import dljob
from dljob import AnyJob, CallFuture, DataQueue, DLJob, JobHandle, JobStatus, KubernetesJob, RoleGroup
from dljob import WeightChannel, Worker

if TYPE_CHECKING:
    from rollout import Rollout

class Trainer(Worker):
    def setup(self) -> None:
        self.rollout = RoleGroup["Rollout"]("rollout")

    def run(self) -> float:
        assert_type(self.rollout.generate(["a"], n=2), Any)
        assert_type(self.rollout.load(version=3), Any)
        assert_type(self.rollout.generate.options(timeout=5)(["a"]), Any)
        assert_type(self.rollout.options(timeout=5)[0].load(3), Any)
        assert_type(self.rollout.call("generate", ["a"]), "CallFuture[Any]")
        assert_type(len(self.rollout), int)
        self.rollout.seed([1, 2])
        return sum(1.0 for rank in self.rollout if rank.load(3))

def given(rollout: type[Rollout]) -> None:
    rollout.generate(["a"])

def untyped(rollout: RoleGroup) -> object:
    given(RoleGroup["Rollout"]("rollout"))
    rollout[0].load(1)
    return rollout.generate(["a"]) + RoleGroup("reward").score([1]).items

def ask(job: DLJob) -> JobStatus:
    assert_type(job.submit("a"), int)
    assert_type(job.submit("a", blocking=False, detach=True), JobHandle)
    assert_type(job.submit("a", blocking=False, to="kubernetes", namespace="b", context="c"), KubernetesJob)
    assert_type(dljob.jobs(), list[JobHandle])
    assert_type(dljob.jobs(kubernetes=True, namespace="a"), list[KubernetesJob])
    assert_type(dljob.job("a", kubernetes=True), KubernetesJob)
    with dljob.local(pretend={"NPU": 8}):
        handle = dljob.job("a")
    assert_type([role["desired"] for role in handle.status().get("roles", [])], list[int])
    assert_type(handle.events()[0]["message"], str)
    return handle.wait(timeout=3)

async def twins(job: AnyJob) -> None:
    assert_type((await job.aio.wait())["phase"], str)
    assert_type(await job.aio.result, object)
    await job.aio.stop(wait=True)
    assert_type(await DataQueue("a").aio.get_batch(2), list[Any])
    assert_type((await WeightChannel("a").aio.receive(timeout=3))[0], int)
    assert_type(await WeightChannel("a").aio.latest(), int | None)
"""
WRONG = """
from rollout import Rollout
import dljob
from dljob import RoleGroup

rollout = RoleGroup["Rollout"]("rollout")
rollout.genrate(["a"])
rollout.generate(promts=["a"])
rollout.generate(["a"], 2, 3)
rollout.generate([1])
rollout.load.option(timeout=3)
rollout.setup()
rollout[0].lod(3)
for rank in rollout:
    rank.load("3")
Rollout().generate(3)
dljob.job("a").status()["phse"]
dljob.job("a").restrt()
dljob.job("a", kubernets=True)
dljob.jobs(namespace="a")
declared: RoleGroup[Rollout] = RoleGroup("rollout")
"""


@pytest.mark.slow
def test_pyright_finds_each_wrong_call_and_nothing_else(tmp_path: Path) -> None:
    for name, text in (("rollout", ROLLOUT), ("right", RIGHT), ("wrong", WRONG)):
        (tmp_path / f"{name}.py").write_text(text)
    settings = {"typeCheckingMode": "standard", "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    found: dict[str, set[int]] = defaultdict(set)
    for each in json.loads(done.stdout)["generalDiagnostics"]:
        found[Path(each["file"]).stem].add(each["range"]["start"]["line"] + 1)
    lines = WRONG.splitlines()
    first = lines.index('rollout.genrate(["a"])') + 1
    harmless = {number for number, line in enumerate(lines, 1) if line.startswith("for ")}
    assert found == {"wrong": {*range(first, len(lines) + 1)} - harmless}, done.stdout


def test_the_declared_members_are_the_real_ones() -> None:
    own = {name for name in vars(typed.Callee) if not name.startswith("_abc") and name != "__module__"}
    for name in own - {"__doc__", "__qualname__", "__static_attributes__", "__firstlineno__", "__annotations__"}:
        real = getattr(rpc.RoleGroup, name)
        declared = inspect.signature(vars(typed.Callee)[name]).parameters
        assert [*declared][1:] == [*inspect.signature(real).parameters][1:], name
    given = inspect.signature(typed.rpc).parameters
    assert [*given] == [*inspect.signature(rpc.rpc).parameters]


def test_the_class_of_a_role_is_not_wanted_at_run_time() -> None:
    assert dljob.RoleGroup["Rollout"] is dljob.RoleGroup
    assert dljob.RoleGroup is rpc.RoleGroup


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(dljob.__file__).parent / "py.typed").is_file()
