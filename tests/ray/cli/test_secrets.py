"""A secret in the environment of the Ray containers, as `envFrom[].secretRef` puts it there: nobody tells it.

And a token that is not Ray's: its dashboard, its Job API and our gateway refuse it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_kit import Job, Ray, ask, eventually, kill, processes, token

from dljob.kube.gateway import GatewayClient
from dljob.kube.head import TOKEN_REFUSED, HeadError, directly
from dljob.kube.ray_jobs import JobApi

pytestmark = pytest.mark.ray

OF_SECRET, ROLE_ENV, ARGUMENT, CONFIG = (f"planted-{what}-7f3c9a" for what in ("secret", "role-env", "arg", "config"))
DASHBOARD = (
    *("/api/version", "/api/jobs/", "/api/cluster_status", "/api/component_activities", "/nodes?view=summary"),
    *(
        "/nodes?view=hostNameList",
        "/logical/actors",
        "/events",
        "/api/prometheus/sd",
        "/test/dump",
        "/usage_stats_enabled",
    ),
    # Without a limit Ray answers with 100 rows: on a slow machine calls of PrimeMaster alone are more.
    *(
        f"/api/v0/{kind}?detail=true&limit=10000"
        for kind in ("actors", "jobs", "nodes", "placement_groups", "runtime_envs", "tasks", "workers", "objects")
    ),
    *("/api/v0/tasks/timeline", "/api/v0/cluster_metadata", "/api/v0/tasks/summarize", "/api/v0/actors/summarize"),
)
GATEWAY = ("status?ranks=1", "events", "placement", "logs", "stacks")


@pytest.fixture(scope="module")
def ray() -> Iterator[Ray]:
    """A kubelet would put the Secret's words into the environment of each container, the head's too."""
    os.environ["API_KEY"] = OF_SECRET
    try:
        made = Ray()
    finally:
        del os.environ["API_KEY"]
    try:
        yield made
    finally:
        made.close()


def role(name: str, entry: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"name": name, "entrypoint": entry, "resources": {"cpu": "0.5"}, **more}


def files(folder: Path) -> dict[str, bytes]:
    """What is in all files below a folder, sockets and links to elsewhere apart."""
    found: dict[str, bytes] = {}
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file() and not path.is_symlink():
                found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def command_lines(me: int) -> dict[str, bytes]:
    """Of every process but the test's own."""
    return {f"cmdline {pid} {argv[0]}": "\0".join(argv).encode() for pid, argv in processes() if pid != me}


def answers(ray: Ray, job: Job, sent: str) -> dict[str, bytes]:
    """What Ray's dashboard and the gateway say of everything, to somebody who has the token."""
    nodes = ask(f"{ray.jobs_api}/nodes?view=summary", None, token())[1]["data"]["summary"]
    paths = [*DASHBOARD, f"/api/jobs/{sent}", f"/api/jobs/{sent}/logs"]
    paths += [f"/nodes/{node['raylet']['nodeId']}" for node in nodes]
    found: dict[str, bytes] = {}
    for path in paths:
        code, said = ask(f"{ray.jobs_api}{path}", None, token())
        assert code == 200, (path, code, said)
        found[f"dashboard {path}"] = json.dumps(said).encode()
    for path in GATEWAY:
        code, said = job.ask(ray, path)
        assert code == 200, (path, code, said)
        found[f"gateway {path}"] = json.dumps(said).encode()
    return found | {"gateway /metrics": json.dumps(ask(f"{ray.gateway}/metrics", None, token())[1]).encode()}


def kinds(places: dict[str, bytes], word: str) -> set[str]:
    """Where a word is told: numbers and ids left out, so that each kind of place has one name."""
    told = {place for place, said in places.items() if word.encode() in said}
    return {re.sub(r"[0-9a-f]{8,}|\d+", "N", place) for place in told}


def test_secrets_appear_in_no_output_log_or_file(ray: Ray, tmp_path: Path) -> None:
    more = {"args": ["--key", ARGUMENT], "config": {"password": CONFIG}, "env": [{"name": "K", "value": ROLE_ENV}]}
    thread = role("thread", {"class": "secret_user.holds"}, **more)
    fork = role("fork", {"module": "secret_user"}, **more)
    job = Job(tmp_path, thread, fork, name="s", envFrom=[{"secretRef": {"name": "keys"}}])
    sent = ray.submit(job)
    job.running(ray)
    folder, digest = job.folder(ray), hashlib.sha256(OF_SECRET.encode()).hexdigest()
    for name in ("thread", "fork"):
        eventually(lambda name=name: (folder / f"holds-{name}-0-1").read_text() == digest, 30, lambda: ray.log(sent))
    orders = ({"id": f"r{n}", "kind": "restart", "target": f"{n}/0", "by": "me"} for n in ("thread", "fork"))
    assert [job.ask(ray, "commands", order)[0] for order in orders] == [202, 202]
    job.until(ray, lambda s: s["phase"] == "Running" and {row["incarnation"] for row in s["ranks"]} == {2})
    kill(ray.actor("PrimeMaster"))  # whoever follows reads the journal, and writes a snapshot
    job.until(ray, lambda s: s["phase"] == "Running" and s["epoch"] == 2)
    places = {**command_lines(os.getpid()), **answers(ray, job, sent)}
    job.go(ray)
    assert ray.ended(sent)["status"] == "SUCCEEDED", ray.log(sent)
    kept = {f"job's folder {path}": said for path, said in files(folder).items()}
    logs = {f"Ray's {path}": said for path, said in files(ray.folder).items() if not path.startswith("home/")}
    assert any("journal" in path for path in kept), sorted(kept)
    assert any(path.endswith("raylet.out") for path in logs), sorted(logs)
    places |= {**kept, **logs, "launcher's log": ray.log(sent).encode()}
    assert kinds(places, OF_SECRET) == set()
    assert kinds(places, token()) == set()
    # docs/howto/security.md says so: what is written into the spec is in the spec, and Ray knows a role's env.
    of_ray = {f"dashboard /api/vN/{kind}?detail=true&limit=N" for kind in ("actors", "runtime_envs", "tasks")}
    for word in (ARGUMENT, CONFIG):
        assert kinds(places, word) == {"job's folder spec.json"}, word
    told = {re.sub(r"Ray's .*/logs/", "Ray's log ", place) for place in kinds(places, ROLE_ENV)}
    assert told == {"job's folder spec.json", *of_ray, "Ray's log runtime_env_agent.N.log"}


@pytest.mark.parametrize("wrong", ["wrong", ""])
def test_a_wrong_token_is_refused_by_all_that_a_head_serves(ray: Ray, wrong: str) -> None:
    status = 403 if wrong else 401
    for path in DASHBOARD:
        code, said = ask(f"{ray.jobs_api}{path}", None, wrong)
        assert (path, code) == (path, status), said
    body = {"entrypoint": f"touch {ray.folder}/intruder", "submission_id": f"intruder-{status}"}
    assert ask(f"{ray.jobs_api}/api/jobs/", body, wrong)[0] == status
    package = f"{ray.jobs_api}/api/packages/gcs/_ray_pkg_intruder.zip"
    assert ask(package, b"code", wrong, method="PUT")[0] == status
    assert ask(f"{ray.jobs_api}/api/jobs/intruder-{status}", None, token())[0] == 404
    assert not (ray.folder / "intruder").exists()
    assert ask(package, None, token())[0] == 404


async def test_the_operators_own_words_for_a_token_that_is_refused(ray: Ray, tmp_path: Path) -> None:
    job = Job(tmp_path, role("w", {"class": "prime_user.quick"}), name="t")
    ray.ended(ray.submit(job))  # so that there is a gateway
    async with aiohttp.ClientSession() as session:
        ray_jobs = JobApi(directly(session, ray.jobs_api, "wrong"))
        gateway = GatewayClient(directly(session, ray.gateway, "wrong"))

        async def refused(call: Callable[[], Any]) -> tuple[int, str]:
            with pytest.raises(HeadError) as caught:
                await call()
            return caught.value.status, caught.value.message

        submit = await refused(lambda: ray_jobs.submit("t-1", ["true"], runtime_env={}, metadata={}))
        asked = await refused(lambda: gateway.status(job.uid))
    assert submit == (403, f"submission t-1: {TOKEN_REFUSED} (HTTP 403): Forbidden: Invalid authentication token")
    assert (asked[0], TOKEN_REFUSED in asked[1]) == (401, True)
    assert "send `Authorization: Bearer <Ray's token>`" in asked[1]
