"""Ports of ranks: outside the ephemeral range, one holder each, and the same after a restart."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from dljob.runtime.serving import ports
from dljob.runtime.serving.ports import HostPorts, PortTakenError, candidates, ephemeral, holder, is_free


@pytest.fixture
def listener() -> Iterator[tuple[socket.socket, int]]:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
        yield made, made.getsockname()[1]


def test_candidates_begin_at_the_seed_and_leave_out_the_ephemeral_range():
    found = list(candidates("u/r/0/http", (32_768, 60_999)))
    assert sorted(found) == [*range(20_000, 32_768), *range(61_000, 65_536)]
    assert found == list(candidates("u/r/0/http", (32_768, 60_999)))
    assert found[0] != next(candidates("u/r/1/http", (32_768, 60_999)))
    assert list(candidates("x", (1_024, 65_535))) == []


def test_a_free_port_is_outside_the_range_of_clients_and_kept_by_its_rank():
    own = HostPorts()
    (first,) = own.take(0, [("http", 0)], "u/r/0", {}).values()
    low, high = ephemeral()
    assert not low <= first <= high
    assert own.take(0, [("http", 0)], "another seed", {}) == {"http": first}


def test_two_hosts_and_two_ports_of_one_rank_never_share_a_number():
    one, two = HostPorts(), HostPorts()
    a = one.take(0, [("http", 0), ("rpc", 0)], "same", {})
    b = two.take(0, [("http", 0), ("rpc", 0)], "same", {})
    c = one.take(1, [("http", 0)], "same", {})
    assert len({*a.values(), *b.values(), *c.values()}) == 5


def test_a_port_of_an_earlier_host_is_taken_again_unless_somebody_listens_there(listener):
    before = HostPorts()
    (had,) = before.take(0, [("http", 0)], "seed", {}).values()
    assert HostPorts().take(0, [("http", 0)], "other", {"http": had})["http"] != had, "it is reserved"
    before.take(0, [], "seed", {})
    assert HostPorts().take(0, [("http", 0)], "other", {"http": had}) == {"http": had}
    _, port = listener
    assert HostPorts().take(0, [("http", 0)], "other", {"http": port})["http"] != port


def test_a_taken_fixed_port_is_an_error_that_names_its_holder(listener):
    _, port = listener
    assert not is_free(port)
    with pytest.raises(PortTakenError, match=rf"port {port} \(http\) is taken by pid {os.getpid()} \(.*python"):
        HostPorts().take(0, [("http", port)], "u", {})


def test_a_fixed_port_belongs_to_one_rank_of_a_host_and_of_a_machine():
    own, other = HostPorts(), HostPorts()
    (port,) = own.take(0, [("a", 0)], "u", {}).values()
    own.take(0, [], "u", {})
    assert own.take(0, [("http", port)], "u", {}) == {"http": port}
    assert own.take(0, [("http", port)], "u", {}) == {"http": port}, "a restart has it again"
    with pytest.raises(PortTakenError, match=f"port {port} .http. is taken by rank 0 of this host"):
        own.take(1, [("http", port)], "u", {})
    with pytest.raises(PortTakenError, match=f"taken by pid {os.getpid()}"):
        other.take(0, [("http", port)], "u", {})
    own.take(0, [], "u", {})
    assert other.take(0, [("http", port)], "u", {}) == {"http": port}


def test_no_free_port_is_an_error(monkeypatch):
    monkeypatch.setattr(ports, "ephemeral", lambda: (1_024, 65_535))
    with pytest.raises(PortTakenError, match="no port from 20000 to 65535 is free"):
        HostPorts().take(0, [("http", 0)], "u", {})


def test_what_the_kernel_does_not_tell_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr(ports, "_EPHEMERAL", tmp_path / "missing")
    assert ephemeral() == (32_768, 60_999)
    assert ports._rows(str(tmp_path / "missing")) == []
    assert ports._inode(tmp_path / "missing") == ""
    assert holder(1) == ""
    monkeypatch.setattr(ports, "_listeners", lambda _port: iter(["no such inode"]))
    assert holder(1) == ""


def test_connections_of_clients_are_counted_for_each_rank():
    own = HostPorts()
    assert own.connections() == {}
    taken = {rank: own.take(rank, [("http", 0)], f"u/r/{rank}", {})["http"] for rank in (0, 1)}
    with socket.socket() as server:
        server.bind(("127.0.0.1", taken[1]))
        server.listen()
        with socket.create_connection(("127.0.0.1", taken[1])), socket.create_connection(("127.0.0.1", taken[1])):
            accepted, _ = server.accept()  # the other one waits to be accepted
            assert own.connections() == {0: 0, 1: 2}
            accepted.close()
