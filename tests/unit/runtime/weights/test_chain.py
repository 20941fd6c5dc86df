"""The chain of nodes that a large version takes: its order, its connections, and the memory that it fills."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.runtime.weights import chain_line, chain_transfer
from dljob.runtime.weights.chain import (
    ALIGN,
    APART_S,
    LEAST_RATE,
    PRESENT_S,
    STALL_S,
    Hop,
    breaker,
    chain,
    cut,
    places,
    reader_nodes,
    seconds_for,
)
from dljob.runtime.weights.chain_line import accepted, connected, listening
from dljob.runtime.weights.chain_transfer import Filled, Transfer, mapped, send_buffers

SECRET = secrets.token_bytes(32)
Join = Callable[[], tuple[socket.socket, socket.socket]]
SIZES = st.lists(st.lists(st.integers(0, 300), max_size=4), max_size=4)

# -- decisions


@given(SIZES)
def test_buffers_have_aligned_places_that_do_not_overlap(sizes):
    begins, size = places(sizes)
    taken = [
        (at, at + n) for starts, bucket in zip(begins, sizes, strict=True) for at, n in zip(starts, bucket, strict=True)
    ]
    assert all(at % ALIGN == 0 for at, _ in taken)
    assert all(end <= after for (_, end), (after, _) in itertools.pairwise(taken))
    assert size == max((end for _, end in taken), default=0) + (-max((end for _, end in taken), default=0)) % ALIGN
    assert [[view.nbytes for view in bucket] for bucket in cut(memoryview(bytes(size)), sizes)] == sizes


def test_nodes_whose_readers_asked_lately_are_wanted_in_the_order_of_their_coming():
    seen = {"b": 100.0, "p": 100.0, "a": 100.0 - PRESENT_S, "old": 99.0 - PRESENT_S, "apart": 100.0, "back": 100.0}
    assert reader_nodes("p", seen, {"apart": 101.0, "back": 99.0}, 100.0) == ["b", "a", "back"]


def test_chain_begins_at_the_publisher_and_has_those_last_that_broke_one():
    assert chain("p", ["a", "b", "c"], {"p", "a", "b", "c"}, {"a"}) == ["p", "b", "c", "a"]
    assert chain("p", ["a", "b", "c"], {"p", "a", "c"}, ()) == ["p", "a", "c"]


def test_chain_needs_its_publisher_and_two_more_nodes():
    assert chain("p", ["a", "b"], {"a", "b"}, ()) == []
    assert chain("p", ["a", "b"], {"p", "a"}, ()) == []


def test_first_node_without_all_bytes_broke_the_chain():
    order, right, part = ["p", "a", "b", "c"], Hop(received=True), Hop(received=False)
    assert breaker(order, dict.fromkeys(order, right)) is None
    assert breaker(order, {"p": right, "a": Hop(received=True, forwarded=False), "b": None, "c": part}) == "b"
    assert breaker(order, {"p": right, "a": part, "b": part, "c": None}) == "a"


def test_link_after_a_quick_one_has_less_time():
    assert seconds_for(10 * LEAST_RATE) == STALL_S + 10
    assert seconds_for(10 * LEAST_RATE, took=1.0) == STALL_S + 2
    assert seconds_for(10 * LEAST_RATE, took=9.0) == STALL_S + 10
    assert APART_S > STALL_S


# -- connections


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as made:
        yield made


@pytest.fixture
def joined(pool: ThreadPoolExecutor) -> Iterator[Join]:
    """Return a maker of connections: the sending end, and the receiving one."""
    with ExitStack() as ends:

        def join() -> tuple[socket.socket, socket.socket]:
            listener = listening("127.0.0.1")
            accepting = pool.submit(accepted, listener, SECRET, time.monotonic() + 20)
            sending = ends.enter_context(connected(listener.getsockname(), SECRET))
            return sending, ends.enter_context(accepting.result(20))

        yield join


def test_peer_with_the_secret_is_accepted_and_the_port_closed(pool):
    listener = listening("127.0.0.1")
    address = listener.getsockname()
    accepting = pool.submit(accepted, listener, SECRET, time.monotonic() + 20)
    with connected(address, SECRET) as sending, accepting.result(20) as receiving:
        sending.sendall(b"bytes")
        assert receiving.recv(5) == b"bytes"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)


def test_peer_without_the_secret_is_refused_and_the_right_one_accepted_after_it(pool, monkeypatch, caplog):
    monkeypatch.setattr(chain_line, "HANDSHAKE_S", 0.2)
    listener = listening("127.0.0.1")
    address = listener.getsockname()
    accepting = pool.submit(accepted, listener, SECRET, time.monotonic() + 20)
    with pytest.raises(ConnectionRefusedError, match="does not know the secret"):
        connected(address, secrets.token_bytes(32))
    with socket.create_connection(address) as wrong:
        wrong.sendall(bytes(32))
        assert len(wrong.recv(64, socket.MSG_WAITALL)) == 64
        wrong.sendall(bytes(32))
        assert wrong.recv(1) == b""
    with socket.create_connection(address):  # says nothing, and holds the port up for no longer than a handshake
        connected(address, SECRET).close()
        accepting.result(20).close()
    assert "127.0.0.1 does not know the secret of the version: refused" in caplog.text


def test_port_closes_when_nobody_comes():
    listener = listening("127.0.0.1")
    with pytest.raises(TimeoutError):
        accepted(listener, SECRET, time.monotonic() + 0.05)
    assert listener.fileno() == -1


# -- memory


def content(size: int) -> bytes:
    return secrets.token_bytes(size)


def run(pool: ThreadPoolExecutor, joined: Join, data: bytes, nodes: Sequence[Transfer]) -> list[bool]:
    """Send data along nodes; return what each said of its part: the source, then receipt and sending of each."""
    hops = [joined() for _ in nodes]
    parts = [pool.submit(send_buffers, hops[0][0], [memoryview(data)], len(data))]
    for number, node in enumerate(nodes):
        parts.append(pool.submit(node.receive, hops[number][1]))
        if number + 1 < len(nodes):
            parts.append(pool.submit(node.send, hops[number + 1][0]))
    return [part.result(60) for part in parts]


def memory_of(node: Transfer, name: str) -> memoryview | None:
    return mapped(Filled(node.filled, f"/proc/{os.getpid()}/fd/{node.fd}", name), node.size)


def test_bytes_go_along_a_chain_and_outlive_their_relays_in_who_mapped_them(pool, joined):
    data = content((5 << 20) + 7 * ALIGN)
    nodes = [Transfer(f"node-{n}", len(data)) for n in range(3)]
    assert all(run(pool, joined, data, nodes))
    views = [memory_of(node, f"node-{n}") for n, node in enumerate(nodes)]
    for node in nodes:
        assert node.took is not None
        node.close()
    for view in views:
        assert view is not None
        assert bytes(view) == data
        assert view.readonly


def test_padding_between_buffers_is_where_their_places_say(pool, joined):
    sizes = [[3, 0, 65], [64]]
    _, size = places(sizes)
    node = Transfer("node", size)
    buckets = [[content(n) for n in bucket] for bucket in sizes]
    sending, receiving = joined()
    sent = pool.submit(send_buffers, sending, [memoryview(each) for bucket in buckets for each in bucket], size)
    assert node.receive(receiving)
    assert sent.result(20)
    memory = memory_of(node, "node")
    assert memory is not None
    assert [[bytes(view) for view in bucket] for bucket in cut(memory, sizes)] == buckets


def test_piece_goes_on_before_the_next_one_has_come(pool, joined, monkeypatch):
    data = content(2 * chain_transfer.PIECE)
    monkeypatch.setattr(chain_transfer, "STEP", chain_transfer.PIECE)
    node, last = Transfer("node", len(data)), Transfer("last", len(data))
    (sending, receiving), (onward, end) = joined(), joined()
    there = threading.Event()
    last._changed = there.set
    parts = [pool.submit(node.receive, receiving), pool.submit(node.send, onward), pool.submit(last.receive, end)]
    sending.sendall(data[: chain_transfer.PIECE])
    assert there.wait(20)
    assert node.filled == last.filled == chain_transfer.PIECE
    sending.sendall(data[chain_transfer.PIECE :])
    assert all(part.result(20) for part in parts)


def test_node_that_is_lost_ends_those_after_it_and_not_those_before_it(pool, joined):
    data = content(8 * chain_transfer.PIECE)
    nodes = [Transfer(f"node-{n}", len(data)) for n in range(2)]
    (sending, receiving), (onward, dying), (other, end) = joined(), joined(), joined()
    parts = [pool.submit(nodes[0].receive, receiving), pool.submit(nodes[0].send, onward)]
    after = pool.submit(nodes[1].receive, end)
    sending.sendall(data[: chain_transfer.PIECE])
    other.sendall(dying.recv(chain_transfer.PIECE, socket.MSG_WAITALL))
    dying.close()
    other.close()
    sending.sendall(data[chain_transfer.PIECE :])
    assert [part.result(20) for part in parts] == [True, False]
    assert (after.result(20), nodes[1].filled) == (False, chain_transfer.PIECE)
    assert nodes[1].failure == "the node before this one closed the connection"


def test_silence_ends_a_receipt(pool, joined, monkeypatch):
    monkeypatch.setattr(chain_line, "STALL_S", 0.1)
    node = Transfer("node", 10)
    _, receiving = joined()
    assert not node.receive(receiving)
    assert node.failure.startswith("no more bytes came")


def test_transfer_that_is_too_slow_is_given_up(pool, joined, monkeypatch):
    monkeypatch.setattr(chain_transfer, "seconds_for", lambda *_: -1.0)
    node, whole = Transfer("node", 2 * chain_transfer.PIECE), Transfer("whole", 2)
    sending, receiving = joined()
    sending.sendall(content(chain_transfer.PIECE))
    assert not node.receive(receiving)
    assert node.failure == "the bytes came too slowly"
    whole._add(2)
    onward, _ = joined()
    assert not whole.send(onward)
    assert not send_buffers(joined()[0], [memoryview(b"12")], 2)


def test_time_before_the_first_byte_does_not_count(pool, joined):
    node = Transfer("node", 10)
    node.began -= 3600.0  # so long it waited for other nodes to start
    to, at = joined()
    receiving = pool.submit(node.receive, at)
    to.sendall(bytes(10))
    assert receiving.result(10)


def test_dropped_version_frees_its_memory_and_wakes_who_waits_for_it(pool, joined):
    node = Transfer("node", 10)
    onward, end = joined()
    sending = pool.submit(node.send, onward)
    node.close()
    node.close()
    assert not sending.result(20)
    assert end.recv(1) == b""
    assert (node.failure, node.fd) == ("the version was dropped", -1)


def test_memory_of_another_process_is_not_taken_for_the_version():
    node = Transfer("node", 10)
    assert memory_of(node, "node") is not None
    assert memory_of(node, "other") is None
    assert mapped(Filled(0, f"/proc/{os.getpid()}/fd/{node.fd}", "node"), 11) is None
    assert mapped(Filled(0, "/proc/0/fd/0", "node"), 10) is None
