"""Torch process groups of thread hosts: formed on a store off rank 0, again in each generation."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest
from host_kit import Job
from role_kit import role_plan

from dljob.runtime.worker.elastic_master import ElasticMaster
from dljob.runtime.worker.thread_host import ThreadHost

pytestmark = [pytest.mark.ray, pytest.mark.torch]

ELASTIC = {"elastic": True, "comm_backend": "gloo", "init_process_group": True, "replicas": 2, "comm_timeout_s": 20}


@pytest.fixture
def job(ray_here, tmp_path) -> Iterator[Job]:
    made = Job(str(tmp_path))
    yield made
    made.close()


def world(job: Job, name: str, store: str, generation: int = 0, **changes):
    role = role_plan("w", ("class", f"torched.{name}"), **{**ELASTIC, **changes})
    hosts = [job.host(ThreadHost, role) for _ in range(2)]
    for rank, host in enumerate(hosts):
        host.start(rank, store=store, generation=generation, incarnation=generation + 1)
    return hosts


def test_group_is_there_before_init_and_in_the_next_generation(job):
    store = job.host(ElasticMaster, role_plan("w", ("class", "torched.Ring"), **ELASTIC))
    address = store.hello().address
    for generation in (0, 1):
        hosts = world(job, "Ring", address, generation)
        results = [json.loads(host.ends(timeout=60)[0].outcome.result) for host in hosts]
        assert results == [{"sum": 3.0, "where": ["cpu", "gloo", 2], "in_init": True}] * 2


def test_collective_that_loses_its_peer_ends_its_rank_or_is_ended(job):
    store = job.host(ElasticMaster, role_plan("w", ("class", "torched.Waits"), **ELASTIC))
    hosts = world(job, "Waits", store.hello().address)
    pids = [host.ready(timeout=60)[0].pid for host in hosts]
    os.kill(pids[1], signal.SIGKILL)
    hosts[0].stop(0, grace_s=0.2)
    outcome = hosts[0].ends(timeout=30)[0].outcome
    assert not outcome.ok
    assert not outcome.fatal


def test_code_that_imports_torch_late_meets_no_half_imported_torch(job):
    """The host imports torch in a thread; a submodule imported meanwhile would abort the process."""
    store = job.host(ElasticMaster, role_plan("w", ("class", "torch_later.late"), **ELASTIC))
    role = role_plan("w", ("class", "torch_later.late"), **ELASTIC)
    address = store.hello().address
    hosts = [job.host(ThreadHost, role) for _ in range(2)]
    for host in hosts:
        host.hello()  # from here on torch is being imported
    for rank, host in enumerate(hosts):
        host.start(rank, store=address)
    outcomes = [host.ends(timeout=60)[0].outcome for host in hosts]
    assert [outcome.result for outcome in outcomes] == ["2", "2"], outcomes
