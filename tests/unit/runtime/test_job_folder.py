"""A job's folder is for its user alone, whichever process of the job is the first one on a node to write to it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from memory_backend import MemoryKeyValue

from dljob.master.state.actions import RankStart
from dljob.runtime.controller.master_log import MasterLog
from dljob.runtime.journal.job_record import ENDED, bring
from dljob.runtime.journal.timeline import Timeline
from dljob.runtime.process.logfile import open_log
from dljob.runtime.process.messages import JobInfo


@pytest.fixture(autouse=True)
def usual_umask() -> Generator[None]:
    """By this one, others may read what is made."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def by_a_rank(folder: Path) -> None:
    job = JobInfo("a" * 32, "j", str(folder), "dljob", "m", 30, 0.2, "", (("w", 1),))
    fd, _ = open_log(job, "w", RankStart(0, 1, 0, 1, 0))
    os.close(fd)


def by_a_master(folder: Path) -> None:
    MasterLog(folder).close()


def by_the_events(folder: Path) -> None:
    Timeline(folder).close()


def by_a_launcher_elsewhere(folder: Path) -> None:
    kv = MemoryKeyValue()
    kv.values[f"{ENDED}u"] = json.dumps({"dir": str(folder), "status": {"phase": "Succeeded"}, "notes": []}).encode()
    assert asyncio.run(bring(kv, "u")) == folder


@pytest.mark.parametrize("first", [by_a_rank, by_a_master, by_the_events, by_a_launcher_elsewhere])
def test_the_folder_of_a_job_is_private_on_every_node(first, tmp_path):
    folder = tmp_path / "jobs" / "j"
    first(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
