"""A spec that Ray itself keeps for the launcher, as on a RayCluster that mounts nothing of ours; with a real Ray."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from gateway_kit import Job, Ray, token

from dljob.kube.head import directly
from dljob.kube.ray_jobs import RayJobs

pytestmark = pytest.mark.ray

CODE = """
from dljob import current_worker

def main():
    print("padding", len(current_worker().config["padding"]), flush=True)
"""
LARGE = 250_000
"""Characters: twice what one argument of a process may have; a `config` takes 262,144."""


@pytest.fixture(scope="module")
def ray() -> Iterator[Ray]:
    made = Ray()
    try:
        yield made
    finally:
        made.close()


def keep(ray: Ray, name: str, content: bytes) -> float:
    """Give it to Ray as the operator does; the seconds that took."""

    async def go() -> float:
        async with aiohttp.ClientSession() as session:
            jobs = RayJobs(directly(session, ray.jobs_api, token()))
            began = time.monotonic()
            await jobs.keep(name, content)
            took = time.monotonic() - began
            await jobs.keep(name, b"not this")
            return took

    return asyncio.run(go())


def test_a_large_spec_reaches_the_launcher_beside_the_users_working_dir(ray: Ray, tmp_path: Path) -> None:
    role = {"name": "w", "entrypoint": {"class": "there.main"}, "resources": {"cpu": "0.5"}}
    job = Job(tmp_path, role, name="kept", config={"padding": "x" * LARGE})
    text = job.spec.read_bytes()
    job.spec.unlink()
    took = keep(ray, "dljob-kept.json", text)
    code = ray.upload(there=CODE)
    sent = ray.submit(job, spec="gcs://dljob-kept.json", runtime_env={"working_dir": code})
    ended = ray.ended(sent)
    assert ended["status"] == "SUCCEEDED", ray.log(sent)
    log = next(ray.home.glob(f"jobs/kept-{job.uid[:8]}/**/*w-0*.log"), None) or next(ray.home.rglob("*w*0*.log"))
    assert f"padding {LARGE}" in log.read_text()
    print(f"kept {len(text)} bytes in {took:.3f} s")


def test_a_spec_that_ray_does_not_keep_is_said(ray: Ray, tmp_path: Path) -> None:
    job = Job(tmp_path, {"name": "w", "entrypoint": {"class": "there.main"}})
    sent = ray.submit(job, spec="gcs://nobody.json")
    ended = ray.ended(sent)
    assert (ended["status"], ended["driver_exit_code"]) == ("FAILED", 2)
    assert '"InvalidSpec"' in ray.log(sent)
    assert "does not keep gcs://nobody.json" in ray.log(sent)
