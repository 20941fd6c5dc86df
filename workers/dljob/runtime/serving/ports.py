"""Ports of the ranks of a host: chosen outside the ephemeral range, and reserved among all jobs of the machine.

A reservation is an abstract unix socket named after the port (`man 7 unix`): the kernel keeps such names for each
network namespace, exactly as it keeps ports, and frees them when their process dies.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from zlib import crc32

from dljob.plan.serving import HIGHEST_PORT, LOWEST_PORT

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LISTENS, _ESTABLISHED = "0A", "01"
"""TCP_LISTEN and TCP_ESTABLISHED in `/proc/net/tcp`."""


class PortTakenError(Exception):
    """A port that a role asked for is in use; the message names the holder where the kernel tells it."""


class HostPorts:
    """The ports of one host's ranks. A restarted rank gets the numbers that it had, unless they are taken."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        """Port -> descriptor of the socket that reserves it."""
        self._of: dict[int, dict[str, int]] = {}

    def take(
        self, rank: int, named_ports: Sequence[tuple[str, int]], seed: str, before: Mapping[str, int]
    ) -> dict[str, int]:
        """Return name -> number of a rank's ports, reserved until this process ends or the rank takes ports again.

        `seed` makes the first choice, so that another host of the same rank tends to choose the same; `before` has the
        numbers that the rank had in an earlier host.

        Raises:
            PortTakenError: A fixed port is in use, or no port is free.
        """
        had = self._of.pop(rank, {})
        ports: dict[str, int] = {}
        try:
            for name, number in named_ports:
                first = [port for port in (had.get(name), before.get(name)) if port]
                ports[name] = self._fixed(name, number) if number else self._free(f"{seed}/{name}", first, ports)
        finally:
            for port in set(had.values()) - set(ports.values()):
                self._release(port)
            self._of[rank] = ports
        return ports

    def connections(self) -> dict[int, int]:
        """Return rank -> connections of clients to its ports, those that it has not accepted yet included."""
        ports_by_rank = {rank: list(ports.values()) for rank, ports in list(self._of.items()) if ports}
        if not ports_by_rank:
            return {}
        count = Counter(
            int(words[1].rpartition(":")[2], 16)
            for table in ("/proc/net/tcp", "/proc/net/tcp6")
            for words in _rows(table)
            if words[3] == _ESTABLISHED
        )
        return {rank: sum(count[port] for port in ports) for rank, ports in ports_by_rank.items()}

    def _fixed(self, name: str, port: int) -> int:
        if port in self._ports_in_use():
            raise PortTakenError(f"port {port} ({name}) is taken by {self._ports_in_use()[port]} of this host")
        if not self._reserve(port) or not is_free(port):
            self._release(port)
            raise PortTakenError(f"port {port} ({name}) is taken by {holder(port) or 'a process that cannot be seen'}")
        return port

    def _free(self, seed: str, first: Iterable[int], new_ports: Mapping[str, int]) -> int:
        used_ports = {*self._ports_in_use(), *new_ports.values()}
        for port in (*first, *candidates(seed, ephemeral())):
            if port in used_ports or not self._reserve(port):
                continue
            if is_free(port):
                return port
            self._release(port)
        raise PortTakenError(
            f"no port from {LOWEST_PORT} to {HIGHEST_PORT} is free outside {_EPHEMERAL}: give the role a fixed port"
        )

    def _ports_in_use(self) -> dict[int, str]:
        return {port: f"rank {rank}" for rank, ports in self._of.items() for port in ports.values()}

    def _reserve(self, port: int) -> bool:
        if port in self._held:
            return True
        name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            name.bind(f"\0dljob-port-{port}")
        except OSError:
            name.close()
            return False
        self._held[port] = name.detach()
        return True

    def _release(self, port: int) -> None:
        if (descriptor := self._held.pop(port, None)) is not None:
            os.close(descriptor)


def is_free(port: int) -> bool:
    """Whether nobody listens on a port of this machine, on any of its addresses."""
    for family, anywhere in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104 - to be told who does
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                # Connections that just ended (TIME_WAIT) do not count: servers set this option as well.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((anywhere, port))
        except OSError as error:
            # A machine without IPv6 has nobody there.
            if family == socket.AF_INET or error.errno == errno.EADDRINUSE:
                return False
    return True


def ephemeral() -> tuple[int, int]:
    """Return the range from which the kernel takes ports of outgoing connections; that of Linux where it is unknown."""
    try:
        low, high = _EPHEMERAL.read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32_768, 60_999


def candidates(seed: str, outside: tuple[int, int]) -> Iterator[int]:
    """Yield all ports to choose from, in an order that begins where the seed says."""
    low, high = outside
    ports = [*range(LOWEST_PORT, min(low, HIGHEST_PORT + 1)), *range(max(high + 1, LOWEST_PORT), HIGHEST_PORT + 1)]
    start = crc32(seed.encode()) % max(1, len(ports))
    yield from ports[start:]
    yield from ports[:start]


def holder(port: int) -> str:
    """Return who listens on a port, or has it reserved: "pid 12 (nginx -g ...)"; empty where that cannot be seen."""
    inodes = {*_listeners(port), *_reservations(port)}
    if not inodes:
        return ""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # A process of another user cannot be looked into.
            if any(_inode(Path(descriptor)) in inodes for descriptor in (folder / "fd").iterdir()):
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                return f"pid {folder.name} ({words[:80] or 'unknown'})"
        except OSError:
            continue
    return ""


def _inode(descriptor: Path) -> str:
    try:
        match = re.fullmatch(r"socket:\[(\d+)\]", str(descriptor.readlink()))
    except OSError:
        return ""
    return match[1] if match else ""


def _listeners(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for words in _rows(table):
            if words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                yield words[9]


def _reservations(port: int) -> Iterator[str]:
    for words in _rows("/proc/net/unix"):
        if words[-1] == f"@dljob-port-{port}":
            yield words[6]


def _rows(table: str) -> list[list[str]]:
    try:
        return [line.split() for line in Path(table).read_text().splitlines()[1:]]
    except OSError:
        return []
