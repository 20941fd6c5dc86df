"""The cheapest causes of the exam (tests/exam), in jobs side by side on the tests' Ray: what `why` says is right."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prime_help import Job

from dljob.api import kept, torchrun, torchrun_line
from dljob.cli import diagnosis

sys.path[:0] = [str(Path(__file__).parents[2] / "exam")]

from cause import Cause  # noqa: E402 - found by the path above
from grading import grade  # noqa: E402
from rows import CAUSES  # noqa: E402
from running_job import RunningJob, tidy  # noqa: E402

pytestmark = pytest.mark.ray

CHEAPEST = (
    "key-error",
    "segfault",
    "address-space-limit",
    "old-line-of-a-retried-request",
    "missing-module",
    "error-in-a-constructor",
    "argument-cannot-be-pickled",
    "killed-from-outside",
    "host-of-a-rank-killed",
    "memory-limit-of-a-group",
)
BY_NAME = {cause.name: cause for cause in CAUSES}
AT_ONCE, END_S = 4, 60


class JobHere(RunningJob):
    """A planted cause as a job on the Ray of the tests, instead of one that brings its own."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.job = Job(self.root)

    def start(self) -> None:
        """Start the job: a script by the spec that `dljob torchrun` makes of its command line."""
        if self.cause.roles:
            spec = {"roles": yaml.safe_load(tidy(self.cause.roles))}
        else:
            line = torchrun_line.read([f"--nproc-per-node={self.cause.ranks}", self.script], {})
            site = torchrun.Site(local=True, cpus=2, devices={}, folder=self.folder)
            spec = torchrun.job(line, site).document["spec"]
        limits = {f"EXAM_{name.upper()}": str(folder) for name, folder in self.groups.items()}
        env = [{"name": name, "value": value} for name, value in {**self.cause.env, **limits}.items()]
        roles = [{**role, "resources": {"cpu": "0.1"}, "env": [*role.get("env", []), *env]} for role in spec["roles"]]
        self.job.start(*roles, name="exam", code=self.folder, **{key: spec[key] for key in spec.keys() - {"roles"}})

    def printed(self) -> str:
        """Return what the ranks have printed."""
        return "\n".join(file.read_text(errors="replace") for file in (self.job.folder / "logs").glob("*-*.log"))

    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.job.connection.status()["phase"] in ("Succeeded", "Failed")

    def pids(self, target: str) -> list[int]:
        """Return the process of a rank, or the host of the only one."""
        return [self.job.host_pid("default/0") if target == "host" else self.job.connection.pids()[target]]

    def answer(self) -> dict[str, Any]:
        """Return what is graded, once the job has ended."""
        status = self.job.connection.wait(END_S)
        seen = kept.overview(self.job.folder)
        explained = diagnosis.diagnose(seen, "exam", "")
        why = {"code": int(explained.kind), **diagnosis.data(seen, explained)}
        return {"why": why, "status": status, "exit_code": 1, "broken": self.broken, "console": []}


@pytest.fixture(scope="module")
def jobs(ray_here: Any) -> Iterator[Mapping[str, JobHere]]:
    """All jobs, started at once, each with its thread for what is done from outside."""
    made = {name: JobHere(BY_NAME[name]) for name in CHEAPEST}
    try:
        for number, job in enumerate(made.values()):
            if number >= AT_ONCE:
                list(made.values())[number - AT_ONCE].job.connection.wait(END_S)
            job.prepare()
            job.start()
            threading.Thread(target=job.act, daemon=True).start()
        yield made
    finally:
        for job in made.values():
            job.job.close()
            job.remove()


@pytest.mark.parametrize("name", CHEAPEST)
def test_the_first_cause_its_rank_and_line_are_named(jobs: Mapping[str, JobHere], name: str) -> None:
    result = jobs[name].answer()
    graded = grade(BY_NAME[name], jobs[name].marked_line(), result)
    assert graded["grade"] == "right", (graded["parts"], result["why"]["lines"])
