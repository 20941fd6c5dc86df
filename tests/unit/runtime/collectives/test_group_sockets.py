"""The sockets of process groups: which they are, and that shutting them ends every wait.

That no thread of a real gloo group stays in one: tests/ray/worker/test_break_off.py.
"""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from unittest.mock import MagicMock

import pytest

from dljob.runtime.collectives import group_sockets
from dljob.runtime.collectives.group_sockets import GroupSockets


class Group:
    """As gloo makes one: an epoll that watches a socket that listens, and the connections."""

    def __init__(self, stack: ExitStack) -> None:
        self.epoll = stack.enter_context(select.epoll())
        self.listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.mine = stack.enter_context(socket.create_connection(self.listener.getsockname()))
        self.theirs = stack.enter_context(self.listener.accept()[0])
        for each in (self.listener, self.mine):
            self.epoll.register(each, select.EPOLLIN)

    def broken(self) -> bool:
        return bool(select.select([self.mine], [], [], 0)[0]) and self.mine.recv(1) == b""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def test_the_watched_sockets_of_a_group_are_shut_but_not_its_listener(stack):
    sockets, other = GroupSockets(), Group(stack)
    with sockets.noticed():
        group = Group(stack)
    assert sockets.shut() == 1
    assert group.broken()
    assert not other.broken()
    stack.enter_context(socket.create_connection(group.listener.getsockname()))
    assert sockets.shut() == 0


def test_the_other_end_may_write_until_the_connection_is_not_held_any_more(stack, monkeypatch):
    made = MagicMock()
    monkeypatch.setattr(group_sockets.threading, "Timer", made)
    sockets = GroupSockets()
    with sockets.noticed():
        group = Group(stack)
    assert sockets.shut() == 1
    assert group.broken()
    group.mine.close()  # as gloo does, with what it has not read yet
    for _ in range(2):  # the second write fails where the first one is refused
        group.theirs.sendall(b"more")
        assert not select.select([group.theirs], [], [], 0.05)[0]
    ((hold_s, over), _), started = made.call_args, made.return_value.start
    assert (hold_s, started.call_count) == (group_sockets.HOLD_S, 1)
    over()
    with pytest.raises(ConnectionResetError):  # nobody has read that
        group.theirs.recv(1)


def test_where_no_descriptor_is_left_to_hold_a_connection_by_its_wait_ends_all_the_same(stack, monkeypatch):
    def none_left(_: socket.socket) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    sockets = GroupSockets()
    with sockets.noticed():
        group = Group(stack)
    monkeypatch.setattr(socket.socket, "dup", none_left)
    assert sockets.shut() == 0
    assert group.broken()


def test_a_group_that_is_still_being_made_is_shut_as_well(stack):
    sockets = GroupSockets()
    with sockets.noticed():
        group = Group(stack)
        sockets.shut()
        assert group.broken()


def test_an_epoll_without_a_listening_socket_is_left_alone(stack):
    sockets, group = GroupSockets(), Group(stack)
    with sockets.noticed():
        loop = stack.enter_context(select.epoll())
        loop.register(group.mine, select.EPOLLIN)
    assert sockets.shut() == 0
    assert not group.broken()


def test_a_number_that_is_another_ones_by_now_is_left_alone(stack):
    sockets = GroupSockets()
    with ExitStack() as inner, sockets.noticed():
        number = Group(inner).epoll.fileno()
    again = Group(stack)
    assert again.epoll.fileno() == number, "the system gives the lowest number that is free"
    assert sockets.shut() == 0
    assert not again.broken()


def test_a_group_with_the_descriptor_of_one_destroyed_meanwhile_is_shut(stack):
    sockets, inner = GroupSockets(), ExitStack()
    number = Group(inner).epoll.fileno()
    with sockets.noticed():
        inner.close()  # the last reference to the earlier group goes only now
        group = Group(stack)
    assert group.epoll.fileno() == number, "the system gives the lowest number that is free"
    assert sockets.shut() == 1
    assert group.broken()


def test_a_rank_that_waits_for_the_store_is_released(stack):
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    client = stack.enter_context(socket.create_connection(server.getsockname()))
    other = Group(stack)
    host, port = server.getsockname()
    assert GroupSockets().shut(f"{host}:{port}") == 1
    assert client.recv(1) == b""
    assert not other.broken()
