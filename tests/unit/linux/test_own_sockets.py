"""TCP connections over which nothing arrives, and whether this process listens."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import pytest

from dljob.linux import broken_connection, own_sockets
from dljob.runtime.collectives import group_sockets


class Connection:
    """A connection with the kernel's facts of a test."""

    family, type = socket.AF_INET, socket.SOCK_STREAM

    def __init__(
        self, *, repeated: int = 0, probes: int = 0, unacknowledged: int = 0, ack_ms: int = 0, own: str = "127.0.0.1"
    ):
        info = bytearray(192)
        info[0], info[2], info[3] = 1, repeated, probes
        struct.pack_into("I", info, 24, unacknowledged)
        struct.pack_into("I", info, 56, ack_ms)
        struct.pack_into("I", info, 144, 100 if probes else 0)
        self.info, self.own = bytes(info), own

    def getsockopt(self, *_: object) -> bytes:
        return self.info

    def getpeername(self) -> tuple[str, int]:
        return "10.0.0.7", 4242

    def getsockname(self) -> tuple[str, int]:
        return self.own, 9


SILENT = "what it sent to 10.0.0.7:4242 is not acknowledged for 9 s"
GONE = ", and 192.0.2.9 is no address of its machine any more"


@pytest.mark.parametrize(
    ("connection", "words"),
    [
        (Connection(), ""),
        (Connection(repeated=5, unacknowledged=1, ack_ms=900), ""),
        (Connection(repeated=1, unacknowledged=1, ack_ms=9000), ""),
        (
            Connection(repeated=3, unacknowledged=1, ack_ms=9000),
            "what it sent to 10.0.0.7:4242 is not acknowledged for 9 s",
        ),
        (
            Connection(probes=4, ack_ms=9000, own="192.0.2.9"),
            f"{SILENT}{GONE}",
        ),
    ],
)
def test_a_connection_without_answers_is_dead(
    connection: Connection, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_sockets, "_tcp_sockets", lambda: iter([connection]))
    own_sockets.look_for_dead_links()
    assert own_sockets.describe_dead_links() == words
    monkeypatch.setattr(own_sockets.DeadLinks, "looked_at", 0.0)
    assert own_sockets.describe_dead_links() == "", "it was long ago"


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as mine:
        yield listener, mine


def test_a_process_that_listens_is_known(pair: tuple[socket.socket, socket.socket]) -> None:
    listener, mine = pair
    assert own_sockets.listens()
    own_sockets.look_for_dead_links()
    assert own_sockets.describe_dead_links() == ""
    listener.close()
    assert mine.fileno() > 0


def test_the_users_sockets_stay_as_they_are_under_a_default_timeout(pair: tuple[socket.socket, socket.socket]) -> None:
    listener, mine = pair
    mine.setblocking(True)
    socket.setdefaulttimeout(30.0)
    try:
        assert own_sockets.listens(), "it is not looked at, and may well listen"
        own_sockets.look_for_dead_links()
        ends = list(broken_connection._of_descriptor(mine.fileno()))
        with group_sockets._borrowed(mine.fileno(), os.fstat(mine.fileno()).st_ino) as borrowed:
            assert borrowed is not None
    finally:
        socket.setdefaulttimeout(None)
    assert len(ends) == 1
    assert [os.get_blocking(one.fileno()) for one in (listener, mine)] == [True, True]
