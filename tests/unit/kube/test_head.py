"""Ray's Job API and the gateway, asked directly and through the API server."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from fake_cluster import FakeCluster
from stub_head import TOKEN, StubHead

from dljob.errors import ExitCode, NotFoundError
from dljob.kube import answers
from dljob.kube import head as head_module
from dljob.kube.api import Kube
from dljob.kube.gateway import MASTER_LOG_SINCE, GatewayClient
from dljob.kube.head import (
    Ask,
    HeadError,
    LargeAnswerSlots,
    MisbehavesError,
    TooOldError,
    UnavailableError,
    UnknownError,
    address,
    directly,
    through,
)
from dljob.kube.ray_jobs import JobApi, refusal

UID = "0" * 32


@pytest.fixture
async def head() -> StubHead:
    return StubHead()


@pytest.fixture
async def ask(head: StubHead) -> AsyncIterator[Ask]:
    server = await head.serve()
    async with aiohttp.ClientSession() as session:
        yield directly(session, str(server.make_url("")).rstrip("/"), TOKEN)
    await server.close()


def test_addresses_of_heads_quote_ipv6() -> None:
    assert address("10.0.0.1", 8265) == "http://10.0.0.1:8265"
    assert address("fd00::1", 8266) == "http://[fd00::1]:8266"
    assert address("head.svc", 1) == "http://head.svc:1"


async def submit(jobs: JobApi, name: str = "hello-1") -> str:
    return await jobs.submit(
        name, ["python", "-m", "x", "a b"], runtime_env={"env_vars": {"A": "1"}}, metadata={"k": "v"}
    )


async def test_a_submission_posts_the_launcher_with_its_environment(head: StubHead, ask: Ask) -> None:
    assert await submit(JobApi(ask)) == "made"
    assert head.posted == [
        {
            "submission_id": "hello-1",
            "entrypoint": "python -m x 'a b'",
            "runtime_env": {"env_vars": {"A": "1"}},
            "metadata": {"k": "v"},
        }
    ]


@pytest.mark.parametrize("taken", [400, 409, 500])
async def test_a_submission_that_is_there_is_adopted(head: StubHead, ask: Ask, taken: int) -> None:
    head.taken = taken
    await submit(JobApi(ask))
    assert await submit(JobApi(ask)) == "adopted"
    assert len(head.posted) == 1


async def test_a_submission_that_ray_cannot_take_is_an_error_with_rays_words(head: StubHead, ask: Ask) -> None:
    head.accept = False
    with pytest.raises(HeadError, match="submission hello-1: No available agent") as caught:
        await submit(JobApi(ask))
    assert caught.value.status == 500


async def test_the_job_api_tells_status_tail_and_session_of_a_submission(head: StubHead, ask: Ask) -> None:
    jobs = JobApi(ask)
    with pytest.raises(UnknownError):
        await jobs.get("hello-1")
    assert await jobs.tail("hello-1") == ""
    await submit(jobs)
    head.logs["hello-1"] = "\n".join(map(str, range(100)))
    assert (await jobs.get("hello-1"))["status"] == "PENDING"
    assert await jobs.tail("hello-1", 2) == "98\n99"
    assert await jobs.session() == "session_1"


def test_the_launchers_last_line_is_read_as_its_refusal() -> None:
    line = '{"dljob": "refused", "reason": "RayVersionMismatch", "message": "2.9", "hint": "use 2.60"}'
    said = {"reason": "RayVersionMismatch", "message": "2.9", "hint": "use 2.60"}
    assert refusal(f"warning\n{line}\n") == said
    assert refusal(f"{line}\nsys:1: ResourceWarning") == said
    assert refusal('{"a": 1}\n{broken\n[1]\n') == {}
    assert refusal("") == {}


async def test_a_wrong_token_is_refused(head: StubHead, ask: Ask) -> None:
    head.token = "other"
    with pytest.raises(HeadError, match="no token, or a wrong one") as caught:
        await GatewayClient(ask).status(UID)
    assert caught.value.status == 401
    with pytest.raises(HeadError) as caught:
        await submit(JobApi(ask))
    assert caught.value.status == 401


async def test_a_head_that_sends_elsewhere_is_not_followed(head: StubHead, ask: Ask) -> None:
    """It is a user's: the operator would fetch for them what only it can reach."""

    async def elsewhere(_: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("/v1/jobs")

    head.handlers["GET /v1/version"] = head.handlers["POST /api/jobs/"] = elsewhere
    with pytest.raises(HeadError, match="which is not followed") as caught:
        await GatewayClient(ask).version()
    assert caught.value.status == 307
    with pytest.raises(HeadError, match="which is not followed"):
        await submit(JobApi(ask))
    assert "GET /v1/jobs" not in head.asked


async def test_an_answer_without_end_is_not_read_to_the_end(
    head: StubHead, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_module, "SMALL", 500)
    monkeypatch.setattr(answers, "USUAL", answers.Bounds(1000, 100))

    async def long(_: web.Request) -> web.Response:
        return web.Response(text="x" * 1001)

    head.handlers["GET /v1/version"] = long
    with pytest.raises(MisbehavesError, match="more than 1000 bytes"):
        await GatewayClient(ask).version()


async def test_an_answer_of_many_small_objects_is_not_parsed(head: StubHead, ask: Ask) -> None:
    async def many(_: web.Request) -> web.Response:
        return web.Response(body=b'{"x":[' + b"{}," * 30_000 + b"{}]}", content_type="application/json")

    head.handlers["GET /v1/version"] = many
    head.handlers[f"GET /v1/jobs/{UID}/placement"] = many
    with pytest.raises(MisbehavesError, match="more than 20000 values"):
        await GatewayClient(ask).version()
    assert len((await GatewayClient(ask).placement(UID))["x"]) == 30_001


async def test_a_large_answer_that_comes_slowly_does_not_keep_others_waiting(
    head: StubHead, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_module, "SMALL", 10)
    monkeypatch.setattr(head_module, "LARGE_SECONDS", 0.02)
    over = asyncio.Event()

    async def drip(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"x" * 20)
        await over.wait()
        return answer

    head.handlers["GET /v1/version"] = drip
    with pytest.raises(MisbehavesError, match=r"takes over 0\.02 s for an answer"):
        await GatewayClient(ask).version()
    over.set()


async def test_a_namespace_reads_one_large_answer_at_a_time_and_all_together_four() -> None:
    slots, held = LargeAnswerSlots(), contextlib.AsyncExitStack()
    async with held:
        first = await held.enter_async_context(contextlib.AsyncExitStack())
        await first.enter_async_context(slots.of("a")())
        await _waits(slots, "a")
        for namespace in ("b", "c", "d"):
            await held.enter_async_context(slots.of(namespace)())
        await _waits(slots, "e")
        await first.aclose()
        for namespace in ("a", "e"):
            async with asyncio.timeout(1), slots.of(namespace)():
                pass


async def _waits(slots: LargeAnswerSlots, namespace: str) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), slots.of(namespace)():
            pass


@pytest.mark.parametrize("body", [b'"a text"', b"3", b"[" * 5000, b"no json"])
async def test_an_answer_that_is_neither_object_nor_list_is_refused(head: StubHead, ask: Ask, body: bytes) -> None:
    async def odd(_: web.Request) -> web.Response:
        return web.Response(body=body)

    head.handlers["GET /v1/version"] = odd
    with pytest.raises(MisbehavesError, match="no JSON but"):
        await GatewayClient(ask).version()


async def test_an_answer_that_is_compressed_is_not_unpacked(head: StubHead, ask: Ask) -> None:
    async def bomb(_: web.Request) -> web.Response:
        return web.Response(body=zlib.compress(b" " * 10_000_000), headers={"Content-Encoding": "deflate"})

    head.handlers["GET /v1/version"] = bomb
    with pytest.raises(MisbehavesError, match="compresses its answer"):
        await GatewayClient(ask).version()


async def test_a_head_that_does_not_answer_is_a_head_error_without_status() -> None:
    told: list[int] = []
    async with aiohttp.ClientSession() as session:
        ask = directly(session, "http://127.0.0.1:1", TOKEN, told.append)
        with pytest.raises(HeadError, match=r"no answer from http://127\.0\.0\.1:1") as caught:
            await GatewayClient(ask).version()
    assert caught.value.status == 0
    assert told == [0]


async def test_the_gateway_tells_the_status_of_a_job(head: StubHead, ask: Ask) -> None:
    gateway = GatewayClient(ask)
    with pytest.raises(UnknownError, match=f"no job {UID}") as caught:
        await gateway.status(UID)
    assert isinstance(caught.value, NotFoundError)
    assert caught.value.exit_code == ExitCode.NOT_FOUND
    head.say(UID, phase="Running")
    assert (await gateway.status(UID))["phase"] == "Running"
    assert (await gateway.status(UID, after=1, wait=0.05))["version"] == 1
    assert (await gateway.status(UID, ranks=True))["ranks"] == "1"
    assert await gateway.jobs() == [{"uid": UID, "name": "n", "phase": "Running"}]
    head.away = True
    with pytest.raises(UnavailableError, match="PrimeMaster does not answer"):
        await gateway.status(UID)


async def test_a_long_poll_returns_with_the_news(head: StubHead, ask: Ask) -> None:
    head.say(UID, phase="Starting")
    poll = asyncio.create_task(GatewayClient(ask).status(UID, after=1, wait=20))
    await asyncio.wait_for(head.polled.wait(), 5)
    head.say(UID, phase="Running")
    assert (await asyncio.wait_for(poll, 2))["phase"] == "Running"


async def test_the_gateway_serves_commands_events_placement_and_logs(head: StubHead, ask: Ask) -> None:
    gateway = GatewayClient(ask)
    await gateway.command(UID, id="c1", kind="stop", target="job", by="me")
    assert head.commands == [{"id": "c1", "kind": "stop", "target": "job", "by": "me"}]
    with pytest.raises(HeadError, match="dance job: unknown kind dance"):
        await gateway.command(UID, id="c2", kind="dance", target="job", by="me")
    assert await gateway.events(UID, after=4) == [{"seq": 5, "reason": "JobRunning"}]
    assert await gateway.placement(UID) == {"version": 0, "nodes": []}
    head.tails = {"actor/0": "one\ntwo\n"}
    tails = await gateway.tails(UID, 1000)
    assert (dict(tails.logs), tails.cut, tails.master) == ({"actor/0": "one\ntwo\n"}, ("actor/9",), "")
    assert (await gateway.tail(UID, "actor", 0, 4)).text == "two\n"
    with pytest.raises(UnknownError, match="logs: no rank actor/7"):
        await gateway.tail(UID, "actor", 7, 4)
    piece = await gateway.follow(UID, "actor", 0, 1)
    assert (piece.text, piece.offset, piece.end) == ("bc", 3, True)
    for question in (gateway.follow(UID, "", 0, 1), gateway.tail(UID, "", 0, 4), gateway.since(UID, "", 0, 1.0)):
        with pytest.raises(TooOldError, match=f"too old to give PrimeMaster's log: that needs {MASTER_LOG_SINCE} or"):
            await question
    head.master_log = "why\n"
    assert (await gateway.follow(UID, "", 0, 1)).text == "hy\n"
    assert (await gateway.tails(UID, 1000)).master == "why\n"


@pytest.mark.parametrize("body", ["", "[]", "[1]"])
async def test_an_answer_that_is_no_object_misbehaves(head: StubHead, ask: Ask, body: str) -> None:
    async def odd(_: web.Request) -> web.Response:
        return web.Response(text=body)

    paths = ("/api/version", "/api/jobs/hello-1", f"/v1/jobs/{UID}/status", f"/v1/jobs/{UID}/placement")
    head.handlers |= {f"GET {path}": odd for path in (*paths, f"/v1/jobs/{UID}/logs")}
    gateway, jobs = GatewayClient(ask), JobApi(ask)
    for question in (jobs.session(), jobs.get("hello-1"), gateway.status(UID), gateway.placement(UID)):
        with pytest.raises(MisbehavesError, match="no JSON object"):
            await question
    with pytest.raises(MisbehavesError, match="no JSON object"):
        await gateway.tails(UID, 1000)


NO_TEXTS: tuple[Any, ...] = ({}, {"logs": []}, {"logs": {"actor/0": 1}}, {"logs": {}, "cut": [{}]})


@pytest.mark.parametrize("said", NO_TEXTS)
async def test_logs_that_are_no_texts_misbehave(head: StubHead, ask: Ask, said: dict[str, Any]) -> None:
    async def odd(_: web.Request) -> web.Response:
        return web.json_response(said)

    head.handlers[f"GET /v1/jobs/{UID}/logs"] = odd
    with pytest.raises(MisbehavesError, match="not texts by rank"):
        await GatewayClient(ask).tails(UID, 1000)


async def test_the_gateway_is_reached_through_the_api_server(fake: FakeCluster, kube: Kube) -> None:
    seen: list[tuple[str, str, Any]] = []

    def pod(request: web.Request) -> web.Response:
        seen.append((request.method, request.path_qs, request.headers.get("x-ray-authorization")))
        return web.json_response({"error": "no"}, status=404) if "gone" in request.path else web.json_response({"a": 1})

    fake.proxies["p:8266"] = pod
    gateway = GatewayClient(through(kube, "p", 8266, "ns", TOKEN))
    assert await gateway.version() == {"a": 1}
    await gateway.command(UID, id="c1", kind="stop", target="job", by="me")
    with pytest.raises(UnknownError, match="no"):
        await gateway.status("gone", wait=1)
    base = "/api/v1/namespaces/ns/pods/p:8266/proxy/v1"
    assert seen == [
        ("GET", f"{base}/version", "Bearer T"),
        ("POST", f"{base}/jobs/{UID}/commands", "Bearer T"),
        ("GET", f"{base}/jobs/gone/status?after=0&timeout=1", "Bearer T"),
    ]


async def test_an_answer_that_is_no_json(head: StubHead, ask: Ask) -> None:
    head.down = True
    with pytest.raises(HeadError, match="broken"):
        await GatewayClient(ask).placement(UID)
