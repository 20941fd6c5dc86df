"""The transport for httpx: a host is a role; what is safe goes to another server, over real sockets."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import Any

import httpx
import pytest
from completion_server import CompletionServer, Script, serving

from dljob.errors import CallTimeoutError, NotFoundError, UsageError
from dljob.runtime.serving import http_transport as module
from dljob.runtime.serving.endpoints import EndpointFeed, Endpoints
from dljob.runtime.serving.http_transport import AsyncHttpTransport, HttpTransport, NoServerReadyError


class ToldMaster:
    """PrimeMaster: tells the servers that a test names."""

    def __init__(self, *addresses: str) -> None:
        self.lock = threading.Lock()
        self.waiting: list[Future[Any]] = []
        self.table = rows(*addresses)
        self.feed = EndpointFeed(self)

    def ask(self, what: str, args: Any, _timeout_s: float) -> Future[Any]:
        answer: Future[Any] = Future()
        with self.lock:
            if args[0] == self.table:
                self.waiting.append(answer)
            else:
                answer.set_result(self.table)
        return answer

    def now(self, *addresses: str) -> None:
        """Change the table, and wait until the feed has read it: its thread does so a moment after the answer."""
        with self.lock:
            old_table, self.table = self.table, rows(*addresses)
            waiting, self.waiting = self.waiting, []
        for answer in waiting:
            answer.set_result(self.table)
        if self.feed._begun and old_table != self.table:
            assert self.feed.wait(old_table, 10)


def rows(*addresses: str) -> Any:
    return {
        "rollout": [
            {"rank": rank, "incarnation": 1, "addresses": {"http": address, "metrics": address}}
            for rank, address in enumerate(addresses)
            if address
        ]
    }


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    def tell(*servers: CompletionServer | str) -> ToldMaster:
        master = ToldMaster(*(one if isinstance(one, str) else one.address for one in servers))
        monkeypatch.setattr(module, "endpoints", lambda role: Endpoints(role, master.feed))
        return master

    return tell


def refused() -> str:
    """An address where nobody listens."""
    with serving(Script()) as (server,):
        return server.address


def names(client: httpx.Client, count: int, **options: Any) -> list[str]:
    return [client.get("http://rollout/v1/models", **options).text for _ in range(count)]


def test_requests_go_to_the_servers_in_turn_or_by_key(told):
    with serving(Script(), Script()) as servers:
        told(*servers)
        with httpx.Client(transport=HttpTransport(port="metrics")) as client:
            assert set(names(client, 4)) == {"server 0", "server 1"}
            assert len(set(names(client, 4, headers={"dljob-key": "session 7"}))) == 1
            client.post("http://rollout/x", json={}, headers={"dljob-key": "k", "other": "1"})
    (sent,) = [each for server in servers for each in server.script.requests]
    assert "dljob-key" not in sent["headers"]
    assert sent["headers"]["other"] == "1"
    assert sent["headers"]["host"] in {server.address for server in servers}


def test_open_answers_count_as_load(told):
    with serving(Script(), Script()) as servers:
        told(*servers)
        with httpx.Client(transport=HttpTransport(policy="least_loaded")) as client:
            begun = [client.send(client.build_request("POST", "http://rollout/v1/completions", json={}), stream=True)]
            rest = [client.get("http://rollout/").text for _ in range(4)]
            assert len(set(rest)) == 1
            begun[0].close()
            assert len({client.get("http://rollout/").text for _ in range(4)}) == 2


def test_nothing_sent_means_another_server_for_any_method(told):
    with serving(Script((200, {}, b"ok"))) as (server,):
        told(refused(), server)
        with httpx.Client(transport=HttpTransport()) as client:
            assert [client.post("http://rollout/v1/x", json={}).text for _ in range(3)] == ["ok"] * 3

            def once() -> Iterator[bytes]:
                yield b"{}"

            # Its body was not begun either.
            assert [client.post("http://rollout/v1/x", content=once()).text for _ in range(2)] == ["ok"] * 2


def test_a_lost_post_goes_elsewhere_only_where_it_is_declared_safe(told):
    def hang_up(_: Any) -> str:
        return "hang up"

    with serving(Script(hang_up), Script((200, {}, b"ok"))) as (bad, good):
        told(bad, good)
        with httpx.Client(transport=HttpTransport(safe=["/v1/embeddings"])) as client:
            with pytest.raises(httpx.RemoteProtocolError):
                [client.post("http://rollout/v1/x", json={}) for _ in range(2)]
            headers = {"Idempotency-Key": "7"}
            assert [client.post("http://rollout/v1/x", json={}, headers=headers).text for _ in range(2)] == ["ok"] * 2
            assert [client.post("http://rollout/v1/embeddings", json={}).text for _ in range(2)] == ["ok"] * 2
            with pytest.raises(httpx.RemoteProtocolError):
                [client.post("http://rollout/v1/embeddings", content=iter([b"{}"])) for _ in range(2)]
        assert len(bad.script.requests) == 1 + 1 + 1 + 1


def test_a_request_that_ends_three_servers_is_given_up(told):
    scripts = [Script("hang up") for _ in range(5)]
    with serving(*scripts) as servers:
        told(*servers)
        with httpx.Client(transport=HttpTransport(safe=["/"])) as client, pytest.raises(httpx.RemoteProtocolError):
            client.post("http://rollout/v1/x", json={})
    assert sum(len(script.requests) for script in scripts) == 3


def test_a_busy_server_is_passed_over_where_that_is_safe(told):
    busy = (503, {"retry-after": "0"}, b"later")
    with serving(Script(busy), Script((200, {}, b"ok"))) as servers:
        told(*servers)
        with httpx.Client(transport=HttpTransport(safe=["/safe"])) as client:
            assert [client.post("http://rollout/safe", json={}).text for _ in range(2)] == ["ok", "ok"]
            assert {client.post("http://rollout/x", json={}).status_code for _ in range(2)} == {200, 503}
        servers[1].script.answers = [(429, {"retry-after": "tomorrow"}, b"")]
        with httpx.Client(transport=HttpTransport(safe=["/safe"])) as client:
            assert client.post("http://rollout/safe", json={}).status_code in {429, 503}, "the client decides"


def test_a_ready_server_that_serves_errors_is_passed_over_and_told_once(told, caplog):
    broken = Script((500, {}, b"no weights"))
    with serving(broken, Script((200, {}, b"ok"))) as servers:
        told(*servers)
        with httpx.Client(transport=HttpTransport(safe=["/safe"])) as client:
            assert [client.post("http://rollout/safe", json={}).text for _ in range(3)] == ["ok"] * 3
            (words,) = {record.getMessage() for record in caplog.records}
            assert words == (
                f"rollout/0 ({servers[0].address}) is ready by its probe and answers with status 500 to POST /safe;"
                " another server gets such requests"
            )
            assert len(caplog.records) == 1
            # It may have had an effect there: that is for the client to judge.
            assert {client.post("http://rollout/x", json={}).status_code for _ in range(2)} == {200, 500}


def test_an_error_that_three_servers_answer_reaches_the_client(told):
    """The request may be the cause."""
    scripts = [Script((500, {}, b"bad prompt")) for _ in range(5)]
    with serving(*scripts) as servers:
        told(*servers)
        with httpx.Client(transport=HttpTransport(safe=["/"])) as client:
            answer = client.post("http://rollout/x", json={})
    assert (answer.status_code, answer.text) == (500, "bad prompt")
    assert sum(len(script.requests) for script in scripts) == 3


def test_a_request_waits_until_a_server_is_ready(told):
    with serving(Script()) as (server,):
        master = told()
        with httpx.Client(transport=HttpTransport(timeout=None)) as client:
            got: list[str] = []
            thread = threading.Thread(target=lambda: got.append(client.get("http://rollout/").text))
            thread.start()
            master.now(server.address)
            thread.join(20)
    assert got == ["server 0"]


def test_the_wait_ends_at_its_deadline_with_the_role_and_its_ready_servers(told):
    told()
    with httpx.Client(transport=HttpTransport(timeout=0.05)) as client:
        with pytest.raises(NoServerReadyError, match=r"no server of rollout was ready within 0.05 s \(0 servers ready"):
            client.get("http://rollout/")
        with pytest.raises(httpx.ConnectTimeout) as error:
            client.get("http://rollout/")
        assert isinstance(error.value, CallTimeoutError)
        assert error.value.request.url.host == "rollout"


def test_the_deadline_tells_who_refused_the_connection(told):
    address = refused()
    told(address)
    with (
        httpx.Client(transport=HttpTransport(timeout=0.3)) as client,
        pytest.raises(NoServerReadyError, match=rf"answered within 0.3 s \(1 server ready now\); rollout/0 .{address}"),
    ):
        client.get("http://rollout/")


def test_the_time_for_a_server_begins_anew_after_one_that_had_the_request(told):
    """An answer may take longer than the search for a server may."""
    began = threading.Event()

    def slow(answer: Any) -> Any:
        def answered(_: Any) -> Any:
            began.wait(0.3)
            return answer

        return answered

    for answer in ("hang up", (503, {}, b""), (500, {}, b"")):
        with serving(Script(slow(answer)), Script((200, {}, b"ok"))) as servers:
            told(*servers)
            with httpx.Client(transport=HttpTransport(timeout=0.1, safe=["/"])) as client:
                assert client.post("http://rollout/x", json={}).text == "ok"


def test_a_host_that_is_no_role_is_refused_with_those_that_exist(told):
    told()
    words = "http://rolout: the host of a request"
    with httpx.Client(transport=HttpTransport()) as client, pytest.raises(NotFoundError, match=words) as error:
        client.get("http://rolout/")
    assert error.value.hint == "roles with ports: rollout"
    with pytest.raises(UsageError, match="wanted a list of paths"):
        HttpTransport(safe="/v1")


def test_other_errors_and_timeouts_are_the_clients(told):
    release = threading.Event()

    def slow(_: Any) -> Any:
        release.wait(20)
        return (200, {}, b"")

    with serving(Script(slow), Script(slow)) as servers:
        told(*servers)
        transport = HttpTransport(safe=["/"])
        with httpx.Client(transport=transport, timeout=0.05) as client, pytest.raises(httpx.ReadTimeout):
            client.post("http://rollout/", json={})
        release.set()
        assert transport.servers("rollout")._load == {}
    assert sum(len(each.script.requests) for each in servers) == 1


async def test_coroutines_have_the_same_by_their_own_transport(told):
    async def once() -> AsyncIterator[bytes]:
        yield b"{}"

    busy = (503, {"retry-after": "0"}, b"later")
    with serving(Script(busy, "hang up", "hang up"), Script((200, {}, b"ok"))) as servers:
        master = told(refused(), *servers)
        async with httpx.AsyncClient(transport=AsyncHttpTransport(safe=["/safe"], policy="least_loaded")) as client:
            assert [(await client.post("http://rollout/safe", json={})).text for _ in range(3)] == ["ok"] * 3
            with pytest.raises(httpx.RemoteProtocolError):
                [await client.post("http://rollout/safe", content=once()) for _ in range(3)]
            async with client.stream("GET", "http://rollout/") as response:
                assert (await response.aread()).startswith(b"server")
        async with httpx.AsyncClient(transport=AsyncHttpTransport(timeout=0.05)) as client:
            master.now()
            with pytest.raises(NoServerReadyError):
                await client.get("http://rollout/")
        async with httpx.AsyncClient(transport=AsyncHttpTransport(timeout=None)) as client:
            parked = [asyncio.create_task(client.get("http://rollout/")) for _ in range(20)]
            await asyncio.sleep(0)
            master.now(servers[1].address)
            assert {each.text for each in await asyncio.gather(*parked)} == {"server 1"}


async def test_a_timeout_in_a_coroutine_frees_the_server(told):
    release = threading.Event()

    def slow(_: Any) -> Any:
        release.wait(20)
        return (200, {}, b"")

    with serving(Script(slow)) as servers:
        told(*servers)
        transport = AsyncHttpTransport()
        async with httpx.AsyncClient(transport=transport, timeout=0.05) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post("http://rollout/", json={})
        release.set()
        assert transport.servers("rollout")._load == {}


def test_the_openai_clients_way_of_use_is_that_of_httpx(told):
    """The client builds its URLs from base_url, and passes `http_client` on."""
    with serving(Script()) as (server,):
        told(server)
        with httpx.Client(transport=HttpTransport(), base_url="http://rollout/v1/") as client:
            body = {"prompt": [1, 2], "max_tokens": 3, "stream": True}
            with client.stream("POST", "completions", json=body) as response:
                lines = [line for line in response.iter_lines() if line.startswith("data: {")]
        assert server.script.requests[0]["path"] == "/v1/completions"
    assert len([each for each in map(json.loads, (line[6:] for line in lines)) if each["choices"]]) == 3


def test_without_httpx_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    spec = importlib.util.spec_from_file_location("without_httpx", module.__file__)
    assert spec
    assert spec.loader
    with pytest.raises(UsageError, match="httpx is not installed here") as error:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert error.value.hint == "pip install 'dljob[http]'"
