"""News of 500 jobs while the heads of 500 others swallow what they are asked, and 100 more answer with 31 MiB of `{},`.

    python tests/bench/kube/heads.py [flood]

The operator's own queue, passes, pollers and calls, in this process; the API server and all heads in others. What
is decided is made up: a job of a silent head submits its launcher in each pass, and a job with news writes its status.
`flood`: 50 dry runs a second of a dear DLJob are asked of this operator's webhook meanwhile, by a process more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import multiprocessing
import resource
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler
from kubernetes.aio.client.configuration import Configuration

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import HERE, Row, say

from dljob.kube.api import DLJOBS, Kube
from dljob.kube.connection import ApiConnection
from dljob.kube.token_key import TokenKey
from dljob.reconcile.state.model import Observed, ReconcileResult, Settings, Submit, Watch
from dljob.testing.world.fault_schedule import chance
from dljob_operator.controller import leader_tasks as acting_module
from dljob_operator.controller.controller import Controller
from dljob_operator.controller.heads import Heads
from dljob_operator.controller.leader_tasks import LeaderTasks
from dljob_operator.controller.metrics import Metrics
from dljob_operator.watch.cache import Cache
from dljob_operator.watch.workqueue import WorkQueue
from dljob_operator.webhook.certificate import Certificate
from dljob_operator.webhook.server import Webhook

sys.path[:0] = [str(HERE.parent / "unit" / name) for name in ("kube", "operator_shell")]
from fake_cluster import FakeCluster  # noqa: E402 - the folders above have no packages
from shell_kit import ROLE, SETTINGS, dljob  # noqa: E402

GOOD, SILENT, BOMBS = 500, 500, 100
EACH_S, WARM_S, MEASURED_S = 10.0, 30.0, 60.0
"""Seconds between two pieces of news of a job, before it counts, and that count."""
BOMB_BYTES, PIECE = 31 * 2**20, b"{}," * 20_000
JOBS = {"good": GOOD, "silent": SILENT, "bomb": BOMBS}
DRY_RUNS = 50
"""A second."""


# -- everybody else


class News:
    """The gateways of the jobs that have news, behind one port."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[int, str]] = {}
        self._waits: dict[str, asyncio.Event] = {}

    async def status(self, request: web.Request) -> web.Response:
        uid, after = request.match_info["uid"], int(request.query["after"])
        if self._said.get(uid, (1, ""))[0] <= after:
            event = self._waits.setdefault(uid, asyncio.Event())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), float(request.query["timeout"]))
        version, at = self._said.get(uid, (1, ""))
        return web.json_response({"attempt": 1, "version": version, "phase": "Running", "reason": at})

    async def make(self) -> None:
        rng = chance("news")
        while True:
            await asyncio.sleep(rng.expovariate(max(len(self._waits), 1) / EACH_S))
            if self._waits:
                uid = rng.choice(list(self._waits))
                self._said[uid] = (self._said.get(uid, (1, ""))[0] + 1, repr(time.time()))
                self._waits.pop(uid).set()


async def _swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def _bomb(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "application/json"})
    await answer.prepare(request)
    await answer.write(b'{"version":1,"x":[')
    for _ in range(BOMB_BYTES // len(PIECE)):
        await answer.write(PIECE)
    return answer


async def _listen(path: str, answer: Handler) -> int:
    app = web.Application()
    app.router.add_get(path, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner.addresses[0][1]


async def _api(ports: Connection) -> None:
    cluster = FakeCluster()
    for kind, count in JOBS.items():
        for number in range(count):
            name = f"{kind}{number}"
            cluster.put("dljobs", {**dljob(name), "status": {"submissionId": f"s-{name}"}})
    ports.send({"api": (await cluster.serve()).port or 0})
    await asyncio.Event().wait()


async def _news(ports: Connection) -> None:
    news = News()
    ports.send({"good": await _listen("/v1/jobs/{uid}/status", news.status)})
    await news.make()


async def _hostile(ports: Connection) -> None:
    silent = await asyncio.start_server(_swallow, "127.0.0.1", 0, backlog=1000)
    ports.send({"silent": silent.sockets[0].getsockname()[1], "bomb": await _listen("/{path:.*}", _bomb)})
    await asyncio.Event().wait()


def _question() -> bytes:
    """Of a job that is allowed and takes long to judge: 32 roles of 2,000 ranks, with 700 kB of config."""
    config = {f"key-{number}": {"value": "x" * 40, "of": number} for number in range(3000)}
    roles = [
        {**ROLE, "name": f"role-{n}", "replicas": 2000, **({"config": config} if n < 3 else {})} for n in range(32)
    ]
    job = {"metadata": {"name": "dear", "namespace": "default"}, "spec": {"roles": roles}}
    request = {"uid": "u-1", "operation": "CREATE", "namespace": "default", "dryRun": True, "object": job}
    return json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}).encode()


async def _flood(port: Connection) -> None:
    """Ask as often a second as `DRY_RUNS` says; ends with how many were answered how, when it is told to."""
    url, body, counts = f"https://127.0.0.1:{port.recv()}/validate", _question(), Counter[str]()
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE

    async def ask(session: aiohttp.ClientSession) -> None:
        try:
            async with session.post(url, data=body, ssl=trusting, timeout=aiohttp.ClientTimeout(5)) as answer:
                said = (await answer.json(content_type=None))["response"] if answer.status == 200 else {}
        except (aiohttp.ClientError, TimeoutError) as error:
            counts[type(error).__name__] += 1
        else:
            how = "warned" if said.get("warnings") else "judged"
            counts[how if said.get("allowed") else f"answer {answer.status}"] += 1

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as asked:
        while not port.poll():
            asked.create_task(ask(session))
            await asyncio.sleep(1 / DRY_RUNS)
    port.send(counts)


@contextlib.asynccontextmanager
async def _flooded(port: int) -> AsyncGenerator[Counter[str]]:
    """The flood, while the body runs; what was answered is there after it."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there, _flood), daemon=True)
    process.start()
    there.close()  # that of the process counts: who waits for one that died is told
    here.send(port)
    counts = Counter[str]()
    try:
        yield counts
        here.send("end")
        counts.update(await asyncio.to_thread(here.recv))
    finally:
        process.terminate()
        process.join()


def _serve(ports: Connection, what: Callable[[Connection], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(what(ports))


@contextlib.contextmanager
def _others() -> Generator[dict[str, int]]:
    """The API server, the heads with news and the hostile ones, a process each; yields their ports."""
    spawn, made, served = multiprocessing.get_context("spawn"), list[Any](), dict[str, int]()
    try:
        for what in (_api, _news, _hostile):
            here, there = spawn.Pipe()
            made.append(spawn.Process(target=_serve, args=(there, what), daemon=True))
            made[-1].start()
            served |= here.recv()
        yield served
    finally:
        for each in made:
            each.terminate()
            each.join()


# -- the operator


class Decides:
    """In the place of `reconcile`; counts how old each piece of news is when it is decided on."""

    def __init__(self) -> None:
        self.ages: list[float] = []
        self.passes = 0

    def __call__(self, seen: Observed, _settings: Settings, _now: float) -> ReconcileResult:
        self.passes += 1
        meta = seen.job["metadata"]
        kind = meta["name"].rstrip("0123456789")
        submission = f"s-{meta['name']}"
        watch = Watch("c", kind, meta["uid"].replace("-", ""), submission, 1)
        if kind == "silent":
            return ReconcileResult("submits", (Submit(submission, "c", kind, ("launch",), {}, {}),), watch=watch)
        at = seen.master.snapshot.get("reason") if seen.master else ""
        if not at or kind == "bomb" or seen.job["status"].get("reason") == at:
            return ReconcileResult("rests", watch=watch)
        self.ages.append(time.time() - float(at))
        return ReconcileResult("writes", status={**seen.job["status"], "reason": at}, watch=watch)


@contextlib.asynccontextmanager
async def _acting(ports: dict[str, int], decides: Decides) -> AsyncGenerator[None]:
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{ports['api']}"
    kube = Kube(ApiConnection(configuration, "default"), manager="dljob-operator")
    heads = Heads(TokenKey(b"k" * 32), url=lambda host, _port: f"http://127.0.0.1:{ports[host]}")
    cache, queue = Cache(), WorkQueue()
    for body in await kube.list(DLJOBS, "default"):
        cache.put_job(body)
    with patch.object(acting_module, "Controller", partial(Controller, decide=decides)):
        made = LeaderTasks(kube, heads, cache, workers=16, queue=queue, metrics=Metrics("0"), settings=SETTINGS)
    task = asyncio.create_task(made.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await heads.close()
        await kube.close()


@contextlib.asynccontextmanager
async def _webhook() -> AsyncGenerator[int]:
    """This operator's webhook, with a certificate of its own; yields its port."""
    with tempfile.TemporaryDirectory() as folder:
        files = ["-keyout", f"{folder}/tls.key", "-out", f"{folder}/tls.crt"]
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", *files]
        await asyncio.to_thread(subprocess.run, make, check=True, capture_output=True)
        webhook = Webhook(SETTINGS, Certificate(Path(folder)))
        webhook.certificate.load()
        try:
            yield await webhook.serve(0, "127.0.0.1")
        finally:
            await webhook.close()


async def _lag(worst: list[float]) -> None:
    """How long the event loop is blocked at most."""
    while True:
        before = time.monotonic()
        await asyncio.sleep(0.02)
        worst[0] = max(worst[0], time.monotonic() - before - 0.02)


async def _measure(ports: dict[str, int], *, flood: bool) -> tuple[Decides, float, float, Counter[str]]:
    """What was decided, the seconds that the loop was blocked at most, the share of a core, and the flood's answers."""
    decides, worst, answers = Decides(), [0.0], Counter[str]()
    async with contextlib.AsyncExitStack() as stack:
        if flood:
            port = await stack.enter_async_context(_webhook())
            answers = await stack.enter_async_context(_flooded(port))
        await stack.enter_async_context(_acting(ports, decides))
        await asyncio.sleep(WARM_S)
        lag = asyncio.create_task(_lag(worst))
        decides.ages.clear()
        spent = time.process_time()
        await asyncio.sleep(MEASURED_S)
        spent = time.process_time() - spent
        lag.cancel()
    return decides, worst[0], spent / MEASURED_S, answers


def main() -> None:
    logging.disable(logging.CRITICAL)  # each refusal is a line
    flood = sys.argv[1:] == ["flood"]
    with _others() as ports:
        decides, lag, core, answers = asyncio.run(_measure(ports, flood=flood))
    ages = sorted(decides.ages)
    p99 = ages[len(ages) * 99 // 100]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    scene = f"{GOOD} jobs with news, {SILENT} silent heads, {BOMBS} that answer with 31 MiB"
    half = f"n={len(ages)}, median {statistics.median(ages):.3f} s, slowest {ages[-1]:.3f} s"
    note = f"{half}; loop blocked for {lag:.2f} s at most, {core:.0%} of a core"
    if flood:
        scene += f", {DRY_RUNS} dry runs a second"
        note += "; dry runs: " + ", ".join(f"{count} {how}" for how, count in sorted(answers.items()))
    say(f"{decides.passes} passes; {note}")
    Row("news", f"{scene}: news -> decided, p99", "<= 1 s", p99, 1.0, note=note).emit()
    Row("memory", f"{scene}: the operator's peak", "<= 300 MB", peak, 300.0, "MB").emit()


if __name__ == "__main__":
    main()
