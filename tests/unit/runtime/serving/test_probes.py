"""One probe against real sockets: good servers, bad ones, and none."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from dljob.plan.serving import ProbePlan
from dljob.runtime.serving import probes
from dljob.runtime.serving.probes import Answer, ProbeTarget, ask

HTTP = ProbePlan("http", port="http", path="/health", headers=(("X-Token", "t"), ("Host", "me")))
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup"


async def probed(
    answer: bytes | Callable[[bytes, asyncio.StreamWriter], Awaitable[None]], probe: ProbePlan = HTTP
) -> tuple[Answer, list[bytes], int]:
    """Probe a server that sends these bytes; return the answer, the requests and the port."""
    heard: list[bytes] = []
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            heard.append(await reader.readuntil(b"\r\n\r\n"))
            if isinstance(answer, bytes):
                writer.write(answer)
            else:
                await answer(heard[-1], writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        found = await ask(probe, ProbeTarget("127.0.0.1", {"http": port}))
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # until the loop has closed them
        return found, heard, port


async def test_a_good_status_succeeds_and_the_request_is_the_specs():
    answer, (request,), port = await probed(OK)
    assert answer == Answer(ok=True, words=f"GET /health at 127.0.0.1:{port}: status 200, 'up'")
    assert request.startswith(b"GET /health HTTP/1.1\r\n")
    assert b"host: me\r\n" in request
    assert b"x-token: t\r\n" in request


async def test_a_path_that_a_server_does_not_know_is_told_apart():
    for status, unknown in ((404, True), (405, True), (503, False)):
        answer, _, _ = await probed(f"HTTP/1.1 {status} No\r\n\r\n".encode())
        assert answer.unknown == unknown


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nbusy", "status 503, 'busy'"),
        (b"HTTP/1.1 500 No\r\n\r\n", "status 500"),
        (b"HTTP/1.1 500 No\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n2;a=b\r\nab\r\n1\r\nc\r\n0\r\n\r\n", "'abc'"),
        (b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\nzz\r\nc", "status 500, 'ab'"),
        (b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nab", "status 500, 'ab'"),
        (b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n" + b"x" * 9000, f"500, '{'x' * 200}'"),
        (b"HTTP/1.1 500 No\r\n\r\n" + b"x" * 3000, f"status 500, '{'x' * 200}'"),
        (b"hello\r\n\r\n", "no HTTP answer: it begins with 'hello'"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"a" * 30_000 + b"\r\n\r\n", "its headers are longer than 10000 bytes"),
        (b"", "no HTTP answer"),
        (b"HTTP/1.1 302 F\r\nLocation: http://example.com/\r\n\r\n", "redirects to http://example.com/, not followed"),
        (b"HTTP/1.1 302 F\r\nLocation: /again\r\n\r\n", "more than 5 redirects"),
    ],
)
async def test_what_is_wrong_with_an_foundis_told(sent, words):
    answer, _, _ = await probed(sent)
    assert not answer.ok
    assert words in answer.words


async def test_a_redirect_on_the_same_port_is_followed():
    async def moved(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(OK if b"/health/?a=1 " in request else b"HTTP/1.1 307 F\r\nLocation: /health/?a=1\r\n\r\n")

    answer, requests, _ = await probed(moved)
    assert answer.ok
    assert len(requests) == 2


async def test_a_redirect_without_a_place_counts_as_in_kubernetes():
    answer, _, _ = await probed(b"HTTP/1.1 302 F\r\n\r\n")
    assert answer.ok


async def test_a_rank_that_never_answers_fails_in_time():
    async def never(_request: bytes, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    answer, _, _ = await probed(never, replace(HTTP, timeout_s=0))
    assert not answer.ok
    assert "no answer within 0 s" in answer.words


async def test_an_foundwithout_an_end_is_read_to_its_bound_alone():
    sent = 0

    async def gigabytes(_request: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while sent < 1_000_000_000:
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent += 100_000

    answer, _, _ = await probed(gigabytes)
    assert answer.ok
    assert sent < 20_000_000


async def test_a_rank_that_answers_slowly_has_the_timeout_for_the_whole_answer():
    """Not for each byte: a rank that sends one now and then would hold its probe for ever."""

    async def drips(_request: bytes, writer: asyncio.StreamWriter) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 1000:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.02)

    began = asyncio.get_running_loop().time()
    answer, _, port = await probed(drips, replace(HTTP, timeout_s=0.2))  # type: ignore[arg-type] - a whole one is long
    assert answer == Answer(ok=False, words=f"GET /health at 127.0.0.1:{port}: no answer within 0.2 s")
    assert asyncio.get_running_loop().time() - began < 10


async def test_a_connection_suffices_for_a_tcp_probe():
    answer, _, port = await probed(b"", ProbePlan("tcp", port="http"))
    assert answer == Answer(ok=True, words=f"TCP 127.0.0.1:{port}: connected")
    gone = await ask(ProbePlan("tcp", port=str(port)), ProbeTarget("127.0.0.1"))
    assert not gone.ok
    assert "Connect call failed" in gone.words or "refused" in gone.words


async def test_a_certificate_is_not_verified():
    context = probes._unverified()
    assert context.verify_mode == ssl.CERT_NONE
    answer, _, _ = await probed(OK, replace(HTTP, tls=True, headers=()))
    assert not answer.ok, "a server without TLS"


async def test_a_body_that_breaks_off_is_no_failure(monkeypatch):
    class Broken:
        async def read(self, _count: int) -> bytes:
            raise ConnectionResetError

    reader: Any = Broken()
    assert await probes._body(reader, {"content-length": "9"}, 100) == b""


@pytest.mark.parametrize(
    ("script", "ok", "words"),
    [
        ("echo well", True, "exit code 0, 'well\\n'"),
        ("echo bad >&2; exit 3", False, "exit code 3, 'bad\\n'"),
        ("exit 1", False, "exit code 1"),
        ('test "$A" = b', True, "exit code 0"),
        ("yes | head -c 1000000; true", True, "exit code 0"),
        ("sleep 60", False, "no answer within 0 s"),
    ],
)
async def test_a_command_is_judged_by_its_exit_code(script, ok, words):
    probe = ProbePlan("exec", command=("sh", "-c", script), timeout_s=0 if "sleep" in script else 30)
    answer = await ask(probe, ProbeTarget("", env={"A": "b", "PATH": os.environ["PATH"]}))
    assert answer.ok is ok
    assert words in answer.words


async def test_a_command_that_does_not_exist_is_a_failure():
    answer = await ask(ProbePlan("exec", command=("/no/such",)), ProbeTarget(""))
    assert not answer.ok
    assert "No such file" in answer.words
