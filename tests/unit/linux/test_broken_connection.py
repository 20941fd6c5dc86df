"""The other end of a broken connection, found in the frames of the exception about it."""

from __future__ import annotations

import multiprocessing
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dljob.linux.broken_connection import describe


def caught(function: Callable[[], None]) -> BaseException:
    try:
        function()
    except (OSError, EOFError) as error:
        return error
    raise AssertionError("nothing was raised")


def listening() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


def tool() -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, text=True, bufsize=1)
    process.kill()
    process.wait()
    assert process.stdin
    process.stdin.write("get\n")


class Client:
    def __init__(self) -> None:
        self.healthy, self.broken = socket.socketpair()
        self.healthy.send(b"x")

    def reset(self) -> None:
        with listening() as listener:
            self.connection = socket.create_connection(listener.getsockname())
            other, _ = listener.accept()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.close()
        self.connection.recv(1)


def reset() -> None:
    Client().reset()


def pair() -> None:
    mine, other = multiprocessing.Pipe()
    other.close()
    mine.send(1)


def refused() -> None:
    with listening() as listener:
        address = listener.getsockname()
    socket.create_connection(address)


# User code leaves its connections open when it fails, and Python warns of that.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("function", "end"),
    [
        (tool, "within this machine, a pipe of 'cat'"),
        (reset, "within this machine, at 127.0.0.1"),
        (pair, "within this machine, a unix socket"),
        (refused, "within this machine, at 127.0.0.1:"),
    ],
)
def test_an_end_within_the_machine_is_found(function: Callable[[], None], end: str) -> None:
    assert describe(caught(function)).startswith(end)


def to(host: str) -> Callable[[], None]:
    def connect() -> None:
        address = (host, 443)
        raise ConnectionRefusedError(111, f"refused by the {len(address)}")

    return connect


@pytest.mark.parametrize(
    ("host", "end"),
    [
        ("10.0.0.7", "to another machine, 10.0.0.7:443"),
        ("trainer-0.job", "to another machine, trainer-0.job:443"),
        ("::ffff:127.0.0.1", "within this machine, at ::ffff:127.0.0.1:443"),
        ("fe80::1%eth0", "to another machine, fe80::1%eth0:443"),
        ("localhost", "within this machine, at localhost:443"),
    ],
)
def test_the_address_of_a_refused_connection_is_found(host: str, end: str) -> None:
    assert describe(caught(to(host))) == end
    assert describe(ConnectionRefusedError(111, f"Connect call failed ({host!r}, 443)")) == end


def test_an_unknown_end_is_none_of_the_networks() -> None:
    assert describe(BrokenPipeError(32, "Broken pipe")) == "not known"
    assert describe(OSError(104, "reset")) == "not known"


def test_other_errors_are_about_no_connection() -> None:
    assert describe(ValueError("broken pipe")) == ""
    assert describe(OSError(28, "full")) == ""


def test_an_object_that_resists_hides_nothing_else() -> None:
    class Hostile:
        @property
        def __dict__(self) -> dict[str, object]:  # type: ignore[override]
            raise RuntimeError

    def fails() -> None:
        hostile = Hostile()
        raise BrokenPipeError(f"with {id(hostile)}")

    assert describe(caught(fails)) == "not known"


def closed_by_its_peer() -> None:
    with listening() as listener:
        mine = socket.create_connection(listener.getsockname())
        listener.accept()[0].close()
    if not mine.makefile("rb").read(8):
        raise EOFError("connection closed")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_end_of_a_stream_is_about_a_connection_that_its_peer_closed() -> None:
    assert describe(caught(closed_by_its_peer)).startswith("within this machine, at 127.0.0.1")


def test_the_end_of_a_file_is_about_no_connection() -> None:
    def end_of_file() -> None:
        with Path(__file__).open("rb") as file:
            raise EOFError(file.name)

    assert describe(caught(end_of_file)) == ""
