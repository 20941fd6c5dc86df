"""The gateway's HTTP over a made-up source of jobs: routes, token, errors, limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from dljob.errors import NotFoundError, UnreachableError, UsageError
from dljob.runtime.job import gateway_app
from dljob.runtime.job.gateway_app import CommandRequest, LogPart, make_app, serve
from dljob.runtime.journal.record_files import RecordNews, RecordPart

UID = "0123456789abcdef" * 2
TOKEN = "c0ffee" * 10
BEARER = {"Authorization": f"Bearer {TOKEN}"}
JOB = f"/v1/jobs/{UID}"


class Source:
    """Answers with what it was asked, or raises."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.error: Exception | None = None
        self.go = asyncio.Event()
        self.go.set()

    async def _answer(self, what: Any, answer: Any) -> Any:
        self.asked.append(what)
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return answer

    async def jobs(self) -> Any:
        return await self._answer("jobs", [{"uid": UID, "name": "j", "phase": "Running"}])

    async def brief(self, uid: str, after: int, timeout_s: float) -> Any:
        return await self._answer(("brief", uid, after, timeout_s), {"phase": "Läuft"})

    async def status(self, uid: str, after: int, timeout_s: float) -> Any:
        return await self._answer(("status", uid, after, timeout_s), {"ranks": []})

    async def events(self, uid: str, after: int, timeout_s: float) -> Any:
        return await self._answer(("events", uid, after, timeout_s), [{"seq": 4}])

    async def command(self, uid: str, order: CommandRequest) -> None:
        await self._answer(("command", uid, order), None)

    async def endpoints(self, uid: str) -> Any:
        return await self._answer(("endpoints", uid), {"engine": []})

    async def placement(self, uid: str) -> Any:
        return await self._answer(("placement", uid), {"version": 1, "nodes": []})

    async def tails(self, uid: str, budget: int) -> Any:
        return await self._answer(("tails", uid, budget), {"logs": {"a/0": "x"}, "cut": []})

    async def log(
        self, uid: str, rank: tuple[str, int], offset: int | None, limit: int, since: float | None = None
    ) -> LogPart:
        asked = ("log", uid, rank, offset, limit) + (() if since is None else (since,))
        return await self._answer(asked, LogPart("grün\n", 10, end=True, size=10, timed=since != 1.0))

    async def master_log(
        self, uid: str, offset: int | None, limit: int, since: float | None = None, *, older: bool = False
    ) -> LogPart:
        return await self._answer(("master", uid, offset, limit, since, older), LogPart("why\n", 4, end=False, size=9))

    async def record(self, uid: str, have: Any) -> Any:
        parts = [RecordPart("events.jsonl", 4, b"\xff\n")]
        return await self._answer(("record", uid, have), RecordNews({"status.json": 7}, parts))

    async def stacks(self, uid: str, target: str) -> Any:
        return await self._answer(("stacks", uid, target), {"a/0": "x"})

    async def metrics(self) -> str:
        return await self._answer("metrics", "dljob_step 1\n")


@asynccontextmanager
async def client(source: Source, token: str | None = TOKEN) -> AsyncIterator[TestClient[Any, Any]]:
    async with TestClient(TestServer(make_app(source, token, {"dljob": "0.1.0"}))) as made:
        yield made


async def error_of(answer: ClientResponse) -> str:
    assert answer.content_type == "application/json"
    said = await answer.json()
    assert said.keys() == {"error"}
    return said["error"]


# -- routes


@pytest.mark.parametrize(
    ("path", "asked", "answer"),
    [
        ("/v1/jobs", "jobs", [{"uid": UID, "name": "j", "phase": "Running"}]),
        (f"{JOB}/status", ("brief", UID, 0, 0.0), {"phase": "Läuft"}),
        (f"{JOB}/status?after=7&timeout=2.5", ("brief", UID, 7, 2.5), {"phase": "Läuft"}),
        (f"{JOB}/status?timeout=9999", ("brief", UID, 0, 30.0), {"phase": "Läuft"}),
        (f"{JOB}/status?ranks=1", ("status", UID, 0, 0.0), {"ranks": []}),
        (f"{JOB}/events?after=3&timeout=1", ("events", UID, 3, 1.0), {"events": [{"seq": 4}]}),
        (f"{JOB}/placement", ("placement", UID), {"version": 1, "nodes": []}),
        (f"{JOB}/endpoints", ("endpoints", UID), {"engine": []}),
        (f"{JOB}/stacks", ("stacks", UID, "job"), {"stacks": {"a/0": "x"}}),
        (f"{JOB}/stacks?target=a/0", ("stacks", UID, "a/0"), {"stacks": {"a/0": "x"}}),
        (f"{JOB}/logs", ("tails", UID, 600 << 10), {"logs": {"a/0": "x"}, "cut": []}),
        (
            f"{JOB}/record?have=events.jsonl:4,samples/000001-2.10.z:0",
            ("record", UID, {"events.jsonl": 4, "samples/000001-2.10.z": 0}),
            {"files": {"status.json": 7}, "parts": [{"file": "events.jsonl", "from": 4, "data": "/wo="}]},
        ),
        (f"{JOB}/logs?bytes=9", ("tails", UID, 9), {"logs": {"a/0": "x"}, "cut": []}),
        (
            f"{JOB}/logs?role=a&rank=2&follow=1&from=5&bytes=8",
            ("log", UID, ("a", 2), 5, 8),
            {"text": "grün\n", "offset": 10, "end": True, "size": 10, "timed": True},
        ),
        (
            f"{JOB}/logs?role=a&rank=2&follow=1&since=1000&bytes=8",
            ("log", UID, ("a", 2), None, 8, 1.0),
            {"text": "grün\n", "offset": 10, "end": True, "size": 10, "timed": False},
        ),
        (
            f"{JOB}/logs?role=a&rank=2&follow=1",
            ("log", UID, ("a", 2), None, 64 << 10),
            {"text": "grün\n", "offset": 10, "end": True, "size": 10, "timed": True},
        ),
        (
            f"{JOB}/logs?master=1&follow=1&from=5&bytes=8",
            ("master", UID, 5, 8, None, False),
            {"text": "why\n", "offset": 4, "end": False, "size": 9, "timed": True},
        ),
        (
            f"{JOB}/logs?master=1&older=1&follow=1&since=1000",
            ("master", UID, None, 64 << 10, 1.0, True),
            {"text": "why\n", "offset": 4, "end": False, "size": 9, "timed": True},
        ),
    ],
)
async def test_each_question_gets_the_answer_of_its_source(path, asked, answer):
    source = Source()
    async with client(source) as http:
        got = await http.get(path, headers=BEARER)
        assert (got.status, got.content_type) == (200, "application/json")
        assert await got.json() == answer
    assert source.asked == [asked]


# -- token


@pytest.mark.parametrize("header", ["Authorization", "x-ray-authorization"])
async def test_either_header_carries_the_token(header):
    async with client(Source()) as http:
        assert (await http.get(f"{JOB}/status", headers={header: f"Bearer {TOKEN}"})).status == 200
        assert (await http.get(f"{JOB}/status", headers={header: f"bearer {TOKEN}"})).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": TOKEN},
        {"Authorization": "Bearer"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Bearer ü"},
    ],
)
async def test_without_the_token_each_path_is_refused(headers):
    source = Source()
    async with client(source) as http:
        for path in ("/v1/jobs", f"{JOB}/status", f"{JOB}/logs", "/v1/nothing", "/v1"):
            got = await http.get(path, headers=headers)
            assert got.status == 401
            assert "Bearer" in await error_of(got)
        assert (await http.post(f"{JOB}/commands", json={"id": "1", "kind": "stop"}, headers=headers)).status == 401
    assert source.asked == []


async def test_a_ray_without_tokens_needs_none_here():
    async with client(Source(), token=None) as http:
        assert (await http.get(f"{JOB}/status")).status == 200


# -- errors


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (NotFoundError("no job x"), 404, "no job x"),
        (UsageError("no such target", hint="try job"), 400, "no such target\n  try job"),
        (UnreachableError("not now"), 503, "not now"),
        (KeyError("oops"), 500, "KeyError: 'oops'"),
    ],
)
async def test_errors_are_json_with_their_code(error, code, said):
    source = Source()
    source.error = error
    async with client(source) as http:
        got = await http.get(f"{JOB}/status", headers=BEARER)
        assert (got.status, await error_of(got)) == (code, said)


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/", 404),
        ("GET", "/v2", 404),
        ("GET", "/v1/jobs/", 404),
        ("GET", f"{JOB}/nothing", 404),
        ("GET", "/v1/jobs/short/status", 404),
        ("GET", f"/v1/jobs/{UID.upper()}/status", 404),
        ("POST", f"{JOB}/status", 405),
        ("GET", f"{JOB}/commands", 405),
        ("DELETE", f"{JOB}/commands", 405),
        ("GET", f"{JOB}/status?after=x", 400),
        ("GET", f"{JOB}/status?after=-1", 400),
        ("GET", f"{JOB}/status?after=99999999999999999999", 400),
        ("GET", f"{JOB}/status?after=٣", 400),
        ("GET", f"{JOB}/status?timeout=nan", 400),
        ("GET", f"{JOB}/status?timeout=1e9", 400),
        ("GET", f"{JOB}/status?ranks=2", 400),
        ("GET", f"{JOB}/logs?bytes=999999999", 400),
        ("GET", f"{JOB}/record?have=spec.json:0", 400),
        ("GET", f"{JOB}/record?have=samples/../x:0", 400),
        ("GET", f"{JOB}/record?have=events.jsonl:-1", 400),
        ("GET", f"{JOB}/record?have=events.jsonl", 400),
        ("GET", f"{JOB}/logs?role=a&rank=x", 400),
        ("GET", f"{JOB}/logs?role=a&master=1", 400),
        ("GET", f"{JOB}/logs?master=2", 400),
        ("GET", f"{JOB}/logs?role=a&rank=2&follow=1&since=-5", 400),
    ],
)
async def test_bad_requests_get_their_code_and_words(method, path, code):
    source = Source()
    async with client(source) as http:
        got = await http.request(method, path, headers=BEARER)
        assert got.status == code
        assert await error_of(got)
        assert code != 405 or got.headers["Allow"]
    assert source.asked == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b'{"kind": "stop"}',
        b'{"id": "1"}',
        b'{"id": 1, "kind": "stop"}',
        b'{"id": "1", "kind": "stop", "more": "x"}',
        b'{"id": "", "kind": "stop"}',
        b'{"id": "a b", "kind": "stop"}',
        b'{"id": "1", "kind": "restart", "target": "' + b"x" * 200 + b'"}',
        b"\xff",
        b'{"id": "1", "kind": "stop", "by": ["x"]}',
    ],
)
async def test_a_command_that_is_none_is_refused(body):
    source = Source()
    async with client(source) as http:
        got = await http.post(f"{JOB}/commands", data=body, headers=BEARER)
        assert got.status == 400
        assert "command" in await error_of(got) or "target" in await error_of(got)
    assert source.asked == []


async def test_a_body_over_64_kib_is_refused():
    async with client(Source()) as http:
        got = await http.post(f"{JOB}/commands", data=b" " * ((64 << 10) + 1), headers=BEARER)
        assert got.status == 413
        assert await error_of(got)


async def test_too_many_requests_at_once_are_told_to_come_back(monkeypatch):
    monkeypatch.setattr(gateway_app, "AT_ONCE", 2)
    source = Source()
    source.go.clear()
    async with client(source) as http:
        held = [asyncio.create_task(http.get(f"{JOB}/status", headers=BEARER)) for _ in range(2)]
        while len(source.asked) < 2:  # noqa: ASYNC110 - a few turns of the loop
            await asyncio.sleep(0)
        got = await http.get(f"{JOB}/status", headers=BEARER)
        assert (got.status, await error_of(got)) == (503, "2 requests are under way; ask again")
        assert (await http.get("/healthz")).status == 200
        source.go.set()
        assert [answer.status for answer in await asyncio.gather(*held)] == [200, 200]
        assert (await http.get(f"{JOB}/status", headers=BEARER)).status == 200


async def test_the_server_tells_its_free_port_and_a_taken_one_is_an_error():
    server = await serve(Source(), None, {}, "127.0.0.1", 0)
    host, _, port = server.address.partition(":")
    try:
        assert (host, int(port) > 0) == ("127.0.0.1", True)
        with pytest.raises(OSError, match="in use"):
            await serve(Source(), None, {}, "127.0.0.1", int(port))
    finally:
        await server.close()
