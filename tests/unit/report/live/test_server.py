"""What the server of a page answers, asked through a raw socket as an attacker would ask."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dljob.report.live import server as servers
from dljob.report.live.server import PageAnswer, PageRequest, PageServer

BODY = b"<p>secret</p>"
SAFE = {
    "Cache-Control: no-store",
    "Referrer-Policy: no-referrer",
    "X-Content-Type-Options: nosniff",
    "X-Frame-Options: DENY",
    "Cross-Origin-Resource-Policy: same-origin",
    "Cross-Origin-Opener-Policy: same-origin",
}


async def answer(request: PageRequest) -> PageAnswer:
    if request.path == "/none":
        return PageAnswer(204)
    return PageAnswer(200, BODY, "text/html", {"Content-Security-Policy": "default-src 'self'"})


@asynccontextmanager
async def running() -> AsyncGenerator[PageServer]:
    server = PageServer(answer)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def ask(server: PageServer, text: str | bytes) -> str:
    """Send bytes and return all that comes until the server closes, or has sent one whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(text if isinstance(text, bytes) else text.encode("latin-1"))
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = re.search(r"Content-Length: (\d+)", head)
    body = await reader.readexactly(int(length[1])) if length else b""
    closed = "Connection: close" in head
    if closed:
        assert await reader.read() == b""
    writer.close()
    return head + body.decode()


def get(server: PageServer, path: str = "/", *more: str, method: str = "GET", host: str = "") -> str:
    rows = [f"{method} {path} HTTP/1.1", f"Host: {host or f'127.0.0.1:{server.port}'}", *more, "", ""]
    return "\r\n".join(rows)


def cookie(server: PageServer) -> str:
    header = server.access.redeem(server.access.code())
    assert header
    return f"Cookie: {header.partition(';')[0]}"


def run(test: Callable[[PageServer], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with running() as server:
            await test(server)

    asyncio.run(main())


def test_a_link_is_changed_for_a_cookie_and_leads_to_the_page() -> None:
    async def check(server: PageServer) -> None:
        path = server.link().partition(f":{server.port}")[2]
        said = await ask(server, get(server, path))
        assert said.startswith("HTTP/1.1 303 ")
        assert "\r\nLocation: /\r\n" in said
        given = re.search(r"Set-Cookie: (\S+); Path=/; HttpOnly; SameSite=Strict\r\n", said)
        assert given
        assert (await ask(server, get(server, "/", f"Cookie: {given[1]}"))).endswith(BODY.decode())
        # Once: the link in a shell's history or a proxy's log is worth nothing.
        assert (await ask(server, get(server, path))).startswith("HTTP/1.1 401 ")

    run(check)


def test_a_link_on_another_site_leads_there_by_a_page_of_ours() -> None:
    async def check(server: PageServer) -> None:
        path = server.link().partition(f":{server.port}")[2]
        said = await ask(server, get(server, path, "Sec-Fetch-Site: cross-site"))
        assert said.startswith("HTTP/1.1 200 ")
        assert "Set-Cookie: " in said
        assert said.endswith(servers.ONWARD)

    run(check)


@pytest.mark.parametrize("path", ["/", "/data?after=1", "/none", "/nowhere", "/?code=", "/?code=guess"])
@pytest.mark.parametrize("header", ["X: y", "Cookie: dljob=1", "Authorization: Bearer x"])
def test_without_a_code_every_path_answers_the_same_nothing(path: str, header: str) -> None:
    async def check(server: PageServer) -> None:
        said = await ask(server, get(server, path, header))
        assert said.startswith("HTTP/1.1 401 Unauthorized\r\n")
        assert said.endswith("\r\n\r\n")
        assert "Set-Cookie" not in said
        assert said == await ask(server, get(server, "/"))

    run(check)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "get", "CONNECT"])
def test_only_get_is_served_also_with_a_cookie(method: str) -> None:
    async def check(server: PageServer) -> None:
        said = await ask(server, get(server, "/", cookie(server), "Origin: http://evil.example", method=method))
        assert said.startswith("HTTP/1.1 405 ")
        assert "\r\nAllow: GET\r\n" in said
        assert "Access-Control" not in said
        assert BODY.decode() not in said

    run(check)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost", "[::1]:80", "127.0.0.1.:80"])
def test_a_name_that_is_not_ours_is_refused_also_with_a_cookie(host: str) -> None:
    async def check(server: PageServer) -> None:
        said = await ask(server, get(server, "/", cookie(server), host=host))
        assert said.startswith("HTTP/1.1 421 ")
        assert BODY.decode() not in said

    run(check)


def test_localhost_with_the_port_is_ours() -> None:
    async def check(server: PageServer) -> None:
        said = await ask(server, get(server, "/", cookie(server), host=f"localhost:{server.port}"))
        assert said.startswith("HTTP/1.1 200 ")

    run(check)


@pytest.mark.parametrize(
    "text",
    [
        "GET / HTTP/1.0\r\n\r\n",
        "GET /\r\n\r\n",
        "GET http://127.0.0.1/ HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\n: empty\r\n\r\n",
        "\x16\x03\x01 TLS? no\r\n\r\n",
    ],
)
def test_a_request_of_which_two_readers_could_think_differently_is_refused(text: str) -> None:
    async def check(server: PageServer) -> None:
        assert (await ask(server, text)).startswith("HTTP/1.1 400 ")

    run(check)


@pytest.mark.parametrize("header", ["Content-Length: 4", "Transfer-Encoding: chunked", "Content-Length: 0x4"])
def test_a_request_with_a_body_is_refused(header: str) -> None:
    async def check(server: PageServer) -> None:
        assert (await ask(server, get(server, "/", cookie(server), header))).startswith("HTTP/1.1 400 ")

    run(check)


def test_a_head_without_end_is_refused() -> None:
    async def check(server: PageServer) -> None:
        said = await ask(server, b"GET / HTTP/1.1\r\nX: " + b"x" * (servers.HEAD_BYTES + 10) + b"\r\n\r\n")
        assert said.startswith("HTTP/1.1 431 ")

    run(check)


def test_every_answer_has_the_headers_that_keep_it_in_the_browser() -> None:
    async def check(server: PageServer) -> None:
        asked = [
            get(server), get(server, "/", method="POST"), get(server, "/", host="x"), "x\r\n\r\n",
            get(server, "/", cookie(server)), get(server, "/none", cookie(server)),
            get(server, server.link().partition(f":{server.port}")[2]),
        ]  # fmt: skip
        for text in asked:
            said = await ask(server, text)
            rows = said.partition("\r\n\r\n")[0].split("\r\n")
            assert set(rows) >= SAFE
            assert sum(row.startswith("Content-Security-Policy: default-src ") for row in rows) == 1
            assert "Server:" not in said
            assert "Access-Control" not in said

    run(check)


def test_a_connection_serves_several_requests_and_ends_with_a_refused_one() -> None:
    async def check(server: PageServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        mine = cookie(server)
        for _ in range(2):
            writer.write(get(server, "/none", mine).encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204 ")
        writer.write(get(server).encode())
        assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
        writer.close()

    run(check)


def test_a_reader_s_connections_end_with_an_answer_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "CONNECTIONS", 0)

    async def check(server: PageServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(get(server, "/none", cookie(server)).encode())
        assert (await reader.read()).startswith(b"HTTP/1.1 204 ")
        writer.close()

    run(check)


def test_strangers_who_say_nothing_keep_no_reader_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "STRANGERS", 3)

    async def check(server: PageServer) -> None:
        mine = cookie(server)
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        reading, own = await asyncio.open_connection("127.0.0.1", server.port)
        for strangers in range(2):
            own.write(get(server, "/none", mine).encode())
            assert (await reading.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204 ")
            assert await idle[strangers][0].read() == b""
            idle += [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(9)]
        for _, line in [*idle, (reading, own)]:
            line.close()

    run(check)


@pytest.mark.parametrize("target", ["//[", "//[x]y/", "/?a=%zz&b;c"])
def test_a_target_that_is_no_url_is_refused_in_silence(target: str) -> None:
    complaints: list[object] = []

    async def check(server: PageServer) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(get(server, target).encode())
        assert (await reader.read()).split()[1] in (b"400", b"401")
        writer.close()

    run(check)
    assert complaints == []


def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "HEAD_S", 0.01)

    async def check(server: PageServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await reader.read() == b""
        writer.close()

    run(check)


def test_it_listens_on_the_loopback_alone_and_closes() -> None:
    async def check(server: PageServer) -> None:
        assert server._server
        assert [name.getsockname()[0] for name in server._server.sockets] == ["127.0.0.1"]
        await server.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)
        await PageServer(answer).close()

    run(check)


def test_connections_that_browsers_keep_open_say_nothing_when_the_command_ends() -> None:
    complaints: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        server = PageServer(answer)
        await server.start()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        async with asyncio.timeout(10):
            while not server._strangers:  # noqa: ASYNC110 - it has no event for that
                await asyncio.sleep(0.005)
        await server.close()
        writer.close()

    asyncio.run(main())
    assert complaints == []
