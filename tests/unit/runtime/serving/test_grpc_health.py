"""gRPC health checks against grpcio's own server, and against servers that are none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from dljob.plan.serving import ProbePlan
from dljob.runtime.serving.grpc_health import frame, request
from dljob.runtime.serving.probes import MOST_BYTES, ProbeTarget, ask

LONG = "x" * 200
STATUS = {b"": 1, b"\x0a\x04away": 2, b"\x0a\x03odd": 9, b"\x0a\xc8\x01" + LONG.encode(): 1}
"""Bytes of a HealthCheckRequest -> the status of that service."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A gRPC server with a health service, on a port of its own."""

    def check(asked: bytes, context: Any) -> bytes:
        if asked == b"\x0a\x07nothing":
            return b""
        if asked not in STATUS:
            context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return bytes([8, STATUS[asked]])

    server = grpc.server(ThreadPoolExecutor(2))
    methods: dict[str, Any] = {"Check": grpc.unary_unary_rpc_method_handler(check)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods),))
    found = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield found
    server.stop(None).wait()


async def asked(port: int, service: str = "", seconds: int = 5) -> tuple[bool, str]:
    answer = await ask(ProbePlan("grpc", "rpc", service, timeout_s=seconds), ProbeTarget("127.0.0.1", {"rpc": port}))
    return answer.ok, answer.words.partition(f":{port}: ")[2]


@pytest.mark.parametrize(
    ("service", "ok", "said"),
    [
        ("", True, "SERVING"),
        (LONG, True, "SERVING"),
        ("away", False, "NOT_SERVING"),
        ("nothing", False, "UNKNOWN"),
        ("odd", False, "9"),
        ("other", False, "no status: it has no grpc.health.v1.Health, or that knows no service 'other'"),
    ],
)
async def test_the_answer_of_a_grpc_server_is_understood(port, service, ok, said):
    assert await asked(port, service) == (ok, said)


async def test_what_is_asked_is_said(port):
    answer = await ask(ProbePlan("grpc", str(port), "away"), ProbeTarget("127.0.0.1"))
    assert answer.words == f"gRPC health check of away at 127.0.0.1:{port}: NOT_SERVING"


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def of_server(serve: Serve, seconds: int = 5) -> tuple[bool, str]:
    writers: list[asyncio.StreamWriter] = []

    async def kept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await serve(reader, writer)

    server = await asyncio.start_server(kept, "127.0.0.1", 0)
    async with server:
        found = await asked(server.sockets[0].getsockname()[1], seconds=seconds)
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # until the loop has closed them
        return found


def sending(*parts: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(parts))
        with contextlib.suppress(OSError):
            await reader.read()

    return serve


ANSWER = b"\0\0\0\0\x02\x08\x01"


@pytest.mark.parametrize(
    ("parts", "ok", "said"),
    [
        ([frame(0, 0, 1, ANSWER[:3]), frame(0, 1, 1, ANSWER[3:])], True, "SERVING"),
        ([frame(0, 8, 1, b"\x02" + ANSWER + b"\0\0")], True, "SERVING"),
        ([frame(0, 0, 3, ANSWER), frame(3, 0, 1, b"\0\0\0\x07")], False, "the server ended the call (HTTP/2 error 7)"),
        ([frame(3, 0, 3, bytes(4)), frame(0, 0, 1, ANSWER)], True, "SERVING"),
        ([frame(7, 0, 0, bytes(7) + b"\x0b")], False, "the server closes the connection (HTTP/2 error 11)"),
        ([frame(8, 0, 0, bytes(4)), frame(1, 5, 1, b"")], False, "no status: it has no grpc.health.v1.Health"),
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], False, "no gRPC answer: it begins with b'HTTP/1.1 '"),
        ([frame(0, 0, 3, bytes(4000))] * 3, False, "no gRPC answer: it begins with"),
    ],
)
async def test_frames_of_other_servers_are_understood_or_told(parts, ok, said):
    found = await of_server(sending(*parts))
    assert found[0] is ok
    assert found[1].startswith(said)
    assert MOST_BYTES < 12_000, "three frames of 4000 bytes are too much"


async def test_settings_and_pings_are_acknowledged_before_the_answer():
    heard = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.readexactly(len(request(f"127.0.0.1:{writer.get_extra_info('sockname')[1]}", ""))))
        heard.clear()
        writer.write(frame(4, 0, 0, bytes(6)) + frame(6, 0, 0, b"12345678") + frame(4, 1, 0, b""))
        heard.extend(await reader.readexactly(9 + 17))
        writer.write(frame(0, 1, 1, ANSWER))
        with contextlib.suppress(OSError):
            await reader.read()

    assert await of_server(serve) == (True, "SERVING")
    assert bytes(heard) == frame(4, 1, 0, b"") + frame(6, 1, 0, b"12345678")


async def test_a_server_that_never_answers_or_hangs_up_is_told():
    async def gone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    assert await of_server(sending(), seconds=1) == (False, "no answer within 1 s")
    ok, said = await of_server(gone)
    assert not ok
    assert "0 bytes read" in said or "reset" in said.lower()
