"""The socket reader: whole answers, and an error with a new connection for all else."""

from __future__ import annotations

import socket
import threading

import pytest

from dljob.errors import UsageError
from dljob.runtime.data import socket_reader
from dljob.runtime.data.socket_reader import SocketReader, open_source
from dljob.runtime.data.source_reader import Extent, SourceError, SourceEvent


@pytest.fixture
def serve():
    """A server that gives each connection the next answers; an answer of None ends it."""
    made: list[tuple[socket.socket, threading.Thread]] = []

    def begin(*answers: bytes | None) -> tuple[SocketReader, list[bytes]]:
        server = socket.create_server(("127.0.0.1", 0))
        asked, left = list[bytes](), list(answers)

        def run() -> None:
            while left:
                try:
                    connection, _ = server.accept()
                except OSError:  # the test is over
                    return
                with connection, connection.makefile("rb") as file:
                    while left and (line := file.readline()):
                        asked.append(line)
                        answer = left.pop(0)
                        if answer is None:
                            break
                        connection.sendall(answer)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        made.append((server, thread))
        return open_source(f"tcp://127.0.0.1:{server.getsockname()[1]}", {}), asked

    yield begin
    for server, thread in made:
        # It wakes who accepts: the number of a closed socket is soon that of another file.
        server.shutdown(socket.SHUT_RDWR)
        thread.join(30)
        server.close()


def test_partitions_and_events_come_over_one_connection(serve):
    reader, asked = serve(b"a 0 7\nb 3 3\n\n", b"5 6 1.5 3\nx\ny6 7 2.5 0\n\n", b"\n")
    assert reader.partitions() == {"a": Extent(0, 7), "b": Extent(3, 3)}
    assert reader.read("a", 5, 9) == [SourceEvent("a", 5, 6, b"x\ny", 1.5), SourceEvent("a", 6, 7, b"", 2.5)]
    assert reader.read("a", 7, 9) == []
    assert asked == [b"PARTITIONS\n", b"READ a 5 9\n", b"READ a 7 9\n"]
    reader.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "the connection ended in the middle of an answer"),
        (b"ERROR it is being copied\n", "to READ: it is being copied"),
        (b"1 2 0 x\n\n", "invalid literal"),
        (b"1 2 3\n\n", "not enough values"),
        (b"1 2 0 99999999999\n\n", "an event of 99999999999 bytes at offset 1"),
    ],
)
def test_another_answer_is_an_error_and_the_next_question_has_a_new_connection(serve, answer, why):
    reader, _ = serve(answer, b"\n")
    with pytest.raises(SourceError, match=why):
        reader.read("a", 0, 1)
    assert reader.read("a", 0, 1) == []
    reader.close()


def test_an_event_that_breaks_off_is_none(serve):
    reader, _ = serve(b"1 2 0 5\nab", None, b"\n")
    reader._asked("PARTITIONS", lambda file: file.readline())
    with pytest.raises(SourceError, match="ended"):
        reader.read("a", 0, 1)
    reader.close()


def test_a_server_that_is_silent_or_away_is_an_error(monkeypatch):
    monkeypatch.setattr(socket_reader, "ANSWER_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reader = SocketReader("127.0.0.1", port)
        with pytest.raises(SourceError, match="timed out"):
            reader.partitions()
    with pytest.raises(SourceError, match=f"127.0.0.1:{port} to PARTITIONS"):
        reader.partitions()


@pytest.mark.parametrize("uri", ["tcp://host", "tcp://:70", "tcp://host:x", "tcp://host:70/path", "tcp:"])
def test_a_socket_has_a_host_and_a_port(uri):
    with pytest.raises(UsageError, match="wanted a host and a port"):
        open_source(uri, {})


def test_a_socket_takes_no_options():
    with pytest.raises(UsageError, match="takes no option 'group'"):
        open_source("tcp://host:1", {"group": 1})
