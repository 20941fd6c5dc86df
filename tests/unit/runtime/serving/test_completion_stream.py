"""Streams of completions over real sockets: they go on at another server, and give the tokens of an undisturbed run."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from completion_server import CompletionServer, Script, event, serving, undisturbed

from dljob.calls.sse import SseDecoder
from dljob.errors import PeerLostError, RemoteError, UsageError
from dljob.runtime.serving import completion_stream as module
from dljob.runtime.serving.completion_stream import CompletionStream
from dljob.runtime.serving.endpoints import Endpoints

KIT = Path(__file__).parents[3] / "kits" / "completion_server.py"
PROMPT = [3, 1, 4]


class FixedTable:
    """Endpoints that change only when told so."""

    def __init__(self, *addresses: str) -> None:
        self.rows = {
            "rollout": [
                {"rank": rank, "incarnation": 1, "addresses": {"http": address}}
                for rank, address in enumerate(addresses)
            ]
        }

    def table(self) -> Any:
        return self.rows

    def wait(self, seen: Any, seconds: float | None) -> bool:
        time.sleep(seconds or 0)
        return False

    def on_change(self, seen: Any) -> Future[None]:
        return Future()

    def leave(self, rank: int) -> None:
        """A rank that is stopped leaves before it is told so."""
        self.rows = {"rollout": [row for row in self.rows["rollout"] if row["rank"] != rank]}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    def tell(*servers: CompletionServer | str) -> FixedTable:
        table = FixedTable(*(one if isinstance(one, str) else one.address for one in servers))
        monkeypatch.setattr(module, "endpoints", lambda role: Endpoints(role, table))
        return table

    return tell


def completion(count: int = 12, **options: Any) -> CompletionStream:
    return CompletionStream("rollout", {"prompt": PROMPT, "max_tokens": count}, policy="round_robin", **options)


def ids_of(chunks: Any) -> list[int]:
    return [each for chunk in chunks for each in chunk.token_ids]


def places(stream: CompletionStream) -> list[tuple[str, int, int]]:
    return [(part.callee, part.first, part.count) for part in stream.segments]


@contextmanager
def process(die_at: int) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    child = subprocess.Popen([sys.executable, str(KIT), str(die_at)], stdout=subprocess.PIPE, text=True)
    assert child.stdout
    try:
        yield f"127.0.0.1:{child.stdout.readline().strip()}", child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_a_killed_server_costs_no_token_and_none_is_doubled(told):
    with process(7) as (first, child), process(0) as (second, _):
        told(first, second)
        stream = CompletionStream("rollout", {"prompt": PROMPT, "max_tokens": 30})
        ids = [each for chunk in stream for each in chunk.token_ids]
        assert child.wait(20) == -9
    assert ids == undisturbed(PROMPT, 30)
    assert [(part.callee, part.first, part.count) for part in stream.segments] == [
        ("rollout/0", 0, 7),
        ("rollout/1", 7, 23),
    ]


async def test_a_coroutine_goes_on_at_another_server_as_a_thread_does(told):
    with process(7) as (first, _), process(0) as (second, _):
        told(first, second)
        async with CompletionStream("rollout", {"prompt": PROMPT, "max_tokens": 30}) as stream:
            ids = [each async for chunk in stream for each in chunk.token_ids]
    assert ids == undisturbed(PROMPT, 30)
    assert [loss.died for loss in stream.losses] == [True]


@pytest.mark.parametrize("cut", [b"", b'data: {"choices": [{"te', event({"error": {"message": "engine", "code": 500}})])
def test_a_stream_that_is_cut_goes_on_where_it_was(told, cut):
    one = event({"choices": [{"text": "a", "token_ids": undisturbed(PROMPT, 1)}]})
    with serving(Script(one + cut), Script()) as servers:
        told(*servers)
        with completion() as stream:
            assert ids_of(stream) == undisturbed(PROMPT, 12)
        assert places(stream) == [("rollout/0", 0, 1), ("rollout/1", 1, 11)]
        (sent,) = servers[1].script.requests
    assert sent["body"]["prompt"] == [*PROMPT, *undisturbed(PROMPT, 1)]
    assert sent["body"]["max_tokens"] == 11
    assert sent["headers"]["accept"] == "text/event-stream"


def test_the_text_of_a_prompt_is_enough(told):
    with serving(Script(5), Script()) as servers:
        told(*servers)
        stream = CompletionStream(
            "rollout", {"prompt": "once", "max_tokens": 9}, policy="round_robin", headers={"x": "1"}
        )
        assert ids_of(stream) == undisturbed([ord(each) for each in "once"], 9)
        assert next(iter(stream), None) is None
        assert servers[1].script.requests[0]["headers"]["x"] == "1"
    assert stream.token_ids == tuple(undisturbed([ord(each) for each in "once"], 9))


async def test_a_compressed_stream_is_read_too(told):
    whole = event({"choices": [{"text": "a", "token_ids": [1, 2, 3], "finish_reason": "length"}]})
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    with serving(Script((200, headers, gzip.compress(whole)))) as servers:
        told(*servers)
        assert ids_of(completion(3)) == [1, 2, 3]
        assert ids_of([chunk async for chunk in completion(3)]) == [1, 2, 3]


def test_a_line_without_end_fills_no_memory(told, monkeypatch):
    monkeypatch.setattr("dljob.calls.completions.SseDecoder", lambda: SseDecoder(max_event_bytes=1 << 20))

    def endless(handler: Any) -> str:
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(1 << 14):  # a gigabyte
                handler.wfile.write(b"x" * (1 << 16))
        handler.server.script.closed.set()
        return "hang up"

    with serving(Script(endless)) as (server,):
        told(server)
        with pytest.raises(RemoteError, match="an event has more than 1,048,576 bytes"):
            list(completion())
        assert server.script.closed.wait(20)


def test_a_server_that_refuses_connections_is_no_death(told):
    # The one that stays listens first: it must not get the port that the other one leaves.
    with serving(Script()) as (server,):
        with serving(Script()) as (gone,):
            address = gone.address
        told(*[address] * 7, server)
        stream = completion()
        assert ids_of(stream) == undisturbed(PROMPT, 12)
    assert {loss.died for loss in stream.losses} == {False}


@pytest.mark.parametrize(
    ("answer", "deaths"),
    [
        ((503, {"retry-after": "0"}, b"loading"), 0),
        ((429, {}, b""), 0),
        ((500, {}, b"oh"), 1),
        ((502, {}, b"proxy"), 0),
    ],
)
async def test_a_server_that_cannot_serve_now_is_passed_over(told, answer, deaths):
    with serving(Script(answer), Script()) as servers:
        told(*servers)
        stream = completion()
        assert ids_of(stream) == undisturbed(PROMPT, 12)
        assert sum(loss.died for loss in stream.losses) == deaths
        servers[0].script.answers = [answer]
        stream = completion()
        assert ids_of([chunk async for chunk in stream]) == undisturbed(PROMPT, 12)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((400, {}, b"unknown field return_token_ids"), "status 400: unknown field return_token_ids"),
        ((404, {}, b""), "status 404"),
        ((501, {}, b""), "status 501"),
        ((200, {"content-type": "application/json"}, b"{}"), "no stream, but application/json: {}"),
        ((200, {}, b""), "no stream, but no content type"),
        ((307, {"location": "http://elsewhere/"}, b""), "status 307"),
        ((404, {}, b"x" * 100_000), "status 404: x{500}$"),
        (b"data: {\xff}\n\n", "is no chunk: 'utf-8'"),
        (event({"error": {"message": "too long", "code": 400}}), "the server says: too long"),
    ],
)
async def test_what_would_fail_elsewhere_too_is_raised_with_its_words(told, answer, words):
    with serving(Script(answer), Script(answer)) as servers:
        told(*servers)
        with pytest.raises(RemoteError, match=words) as error:
            list(completion())
        assert str(error.value).startswith(f"rollout/0/v1/completions at {servers[0].address}: ")
        with pytest.raises(RemoteError, match=words):
            [chunk async for chunk in completion()]
        assert sum(len(each.script.requests) for each in servers) == 2


def test_a_request_that_kills_three_servers_is_given_up_and_spares_the_fourth(told):
    with serving(*(Script(3) for _ in range(4))) as servers:
        told(*servers)
        stream = completion()
        with pytest.raises(
            PeerLostError, match=r"seems to kill its servers: rank 0 \(incarnation 1\) at token 3"
        ) as error:
            list(stream)
        assert [len(each.script.requests) for each in servers].count(0) == 0 or len(stream.losses) >= 3
    assert "leave this request out" in error.value.hint
    assert error.value.died


def test_servers_that_are_stopped_are_no_deaths(told):
    with serving(*(Script(3) for _ in range(4)), Script()) as servers:
        table = told(*servers)
        got: list[int] = []
        stream = completion(40)
        for chunk in stream:
            got += chunk.token_ids
            # As PrimeMaster does before it tells a rank to stop.
            table.leave(int(chunk.server[-1])) if chunk.server != "rollout/4" else None
    assert got == undisturbed(PROMPT, 40)
    assert [loss.died for loss in stream.losses] == [False] * 4


async def test_the_last_word_of_a_whole_answer_may_be_lost(told):
    whole = event({"choices": [{"text": "a", "token_ids": [1, 2, 3]}]})
    with serving(Script(whole)) as servers:
        told(*servers)
        chunks = list(completion(3))
        assert [chunk.finish_reason for chunk in chunks] == [None, "length"]
        assert [chunk.finish_reason async for chunk in completion(3)] == [None, "length"]
        assert len(servers[0].script.requests) == 2


def test_a_server_without_ids_begins_anew_or_fails_as_asked(told):
    with serving(Script(4, without_ids=True), Script(without_ids=True)) as servers:
        told(*servers)
        with pytest.raises(PeerLostError, match="lost after 4 chunks; its server tells no token ids"):
            list(completion())
        stream = completion(without_ids="restart")
        chunks = [chunk for chunk in stream if chunk.text]
    assert [chunk.position for chunk in chunks] == [*range(4), *range(12)]
    assert [chunk.position for chunk in chunks if chunk.restarted] == [0]
    assert stream.restarts == 1
    assert "".join(chunk.text for chunk in chunks[4:]).split() == [str(each) for each in undisturbed(PROMPT, 12)]


def test_a_chat_is_sent_again_whole_and_told(told):
    body = {"messages": [{"role": "user", "content": "hi"}]}
    with serving(Script(2), Script()) as servers:
        told(*servers)
        stream = CompletionStream("rollout", body, without_ids="restart", policy="round_robin")
        chunks = [chunk for chunk in stream if chunk.text]
        assert servers[1].script.requests[0] == {
            "path": "/v1/chat/completions",
            "headers": servers[1].script.requests[0]["headers"],
            "body": {**body, "stream": True},
        }
    assert [chunk.restarted for chunk in chunks] == [False, False, True, *[False] * 7]


def test_a_stream_of_one_version_waits_for_a_server_that_has_it(told):
    def version(number: int) -> dict[str, Any]:
        return {"headers": {"x-weights-version": str(number)}}

    with serving(Script(5, **version(1)), Script(**version(2)), Script(**version(1))) as servers:
        told(*servers)
        stream = completion(versions="same")
        assert ids_of(stream) == undisturbed(PROMPT, 12)
        assert {chunk.version for chunk in stream} == set()
        assert [part.version for part in stream.segments] == ["1", "1"]
    with serving(Script(5, 0, **version(1)), Script(**version(2))) as servers:
        told(*servers)
        with pytest.raises(
            module.NoServerReadyError, match=r"rollout/1 .*: it has version '2', and the stream began with '1'"
        ):
            list(completion(versions="same", timeout=1.0))
        servers[0].script.answers = [5, (503, {}, b"")]
        stream = completion(versions="any")
        assert ids_of(stream) == undisturbed(PROMPT, 12)
        assert [part.version for part in stream.segments] == ["1", "2"]


async def test_a_wait_for_a_server_has_a_deadline(told):
    told()
    with pytest.raises(module.NoServerReadyError, match=r"no server of rollout was ready within 0\.05 s"):
        list(completion(timeout=0.05))
    with pytest.raises(module.NoServerReadyError):
        [chunk async for chunk in completion(timeout=0.05)]


async def test_a_server_that_never_answers_is_waited_for_until_the_timeout(told):
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        told(*[f"127.0.0.1:{stopped.getsockname()[1]}"] * 2)
        words = r"no server of rollout answered within 0\.3 s .*rollout/0 .*: ReadTimeout"
        with pytest.raises(module.NoServerReadyError, match=words):
            list(completion(timeout=0.3))
        with pytest.raises(module.NoServerReadyError):
            [chunk async for chunk in completion(timeout=0.3, silence=None)]


ONE = event({"choices": [{"text": "a", "token_ids": undisturbed(PROMPT, 1), "finish_reason": "length"}]})


@pytest.mark.parametrize(("silence", "last"), [(60.0, ONE), (None, b"")])
async def test_a_server_that_has_answered_may_be_silent_for_longer_than_the_timeout(told, silence, last):
    def slow(handler: Any) -> str:
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.end_headers()
        threading.Event().wait(0.8)  # it works on the prompt
        handler.wfile.write(last)
        return "hang up"

    with serving(Script(slow, None), Script()) as servers:
        told(*servers)
        assert ids_of(completion(1, timeout=0.5, silence=silence)) == undisturbed(PROMPT, 1)
        servers[0].script.answers = [slow, None]
        stream = completion(1, timeout=0.5, silence=silence)
        assert ids_of([chunk async for chunk in stream]) == undisturbed(PROMPT, 1)


def test_a_silent_server_counts_as_lost(told):
    release = threading.Event()

    def silent(_: Any) -> Any:
        release.wait(20)
        return "hang up"

    with serving(Script(silent), Script()) as servers:
        told(*servers)
        stream = completion(silence=1.0)  # the other one may be slow, on a busy machine
        assert ids_of(stream) == undisturbed(PROMPT, 12)
        release.set()
    assert [loss.reason.partition(":")[2][:13] for loss in stream.losses] == [" ReadTimeout:"]


async def test_a_stream_that_is_left_early_frees_its_server(told):
    with serving(Script(pace=0.01)) as servers:
        told(*servers)
        with completion(500) as stream:
            next(stream)
        assert servers[0].script.closed.wait(20)
        servers[0].script.closed.clear()
        async with completion(500) as stream:
            async for _ in stream:
                break
        assert await asyncio.to_thread(servers[0].script.closed.wait, 20)
    CompletionStream("rollout", {"prompt": "a", "max_tokens": 1}).close()
    await CompletionStream("rollout", {"prompt": "a", "max_tokens": 1}).aclose()


def test_an_option_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match="versions='some': wanted same or any"):
        completion(versions="some")
    with pytest.raises(UsageError, match="without_ids='skip': wanted restart or fail"):
        completion(without_ids="skip")
