"""The other end of a connection that broke under user code: a pipe, a process of this machine, or another machine.

An exception about a connection does not say which one it means. At the moment of the exception its frames still hold
it: the innermost one that holds a pipe or socket decides, and within a frame one that is really broken. A broken pipe
to a tool is the user's own affair; only a connection to another machine can be a fault of the network.
"""

from __future__ import annotations

import errno
import io
import ipaddress
import os
import re
import select
import socket
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, cast

_ERRNOS = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ESHUTDOWN})
_BROKEN = select.POLLERR | select.POLLHUP | select.POLLRDHUP
_ADDRESS_IN_TEXT = re.compile(r"\('([^']+)', (\d+)\)")
_HOST_NAMES = ("host", "hostname", "address", "addr")
"""Names by which libraries hold the address of a connection that was refused, and so has no other end."""
LOCAL = "within this machine"
REMOTE = "to another machine"
UNKNOWN = "not known"


def describe(error: BaseException) -> str:
    """Return the other end of the connection that an error is about; empty if it is about none."""
    if isinstance(error, EOFError):
        return _broken_end(error)
    if not isinstance(error, OSError) or not (isinstance(error, ConnectionError) or error.errno in _ERRNOS):
        return ""
    with suppress(Exception):  # user code's objects are looked at: whatever they raise, the error itself is reported
        if named := _ADDRESS_IN_TEXT.search(str(error)):
            return _of_host(named[1], named[2])
        frames = list(frames_of(error.__traceback__))
        # A connection that was refused has no other end yet.
        for local_names in frames if error.errno != errno.ECONNREFUSED else ():
            ends = [end for value in local_names.values() for end in _ends(value)]
            broken = next((end for end, is_broken in ends if is_broken), "")
            if broken or ends:
                return broken or ends[0][0]
        for local_names in frames:
            if address := _named_address(local_names):
                return address
    return UNKNOWN


def _broken_end(error: EOFError) -> str:
    """Return the other end of a connection that its peer closed while something was read; empty: there is none."""
    with suppress(Exception):  # as above: user code's objects are looked at
        for local_names in frames_of(error.__traceback__):
            for end, is_broken in (end_info for value in local_names.values() for end_info in _ends(value)):
                if is_broken:
                    return end
    return ""


def frames_of(trace: TracebackType | None) -> Iterator[Mapping[str, Any]]:
    """Return the local names of the frames of an error, the innermost first."""
    frames: list[Mapping[str, Any]] = []
    while trace is not None:
        frames.append(trace.tb_frame.f_locals)
        trace = trace.tb_next
    return reversed(frames)


def _ends(value: object, depth: int = 2) -> Iterator[tuple[str, bool]]:
    """Yield the other end of each connection that a value holds, and whether it is broken."""
    if isinstance(value, socket.socket):
        with suppress(OSError):
            yield _of_socket(value), _is_broken(value.fileno())
    elif isinstance(value, subprocess.Popen):
        for stream in (value.stdin, value.stdout, value.stderr):
            for end, is_broken in _ends(stream, 0):
                yield f"{end} of {_command(value.args)}", is_broken or value.returncode is not None
    # By its name: no process has to load multiprocessing for it.
    elif isinstance(value, io.IOBase) or type(value).__module__ == "multiprocessing.connection":
        with suppress(OSError, ValueError, AttributeError):
            yield from _of_descriptor(cast("io.IOBase", value).fileno())
    elif (
        depth and type(value).__module__ != "builtins" and isinstance(fields := getattr(value, "__dict__", None), dict)
    ):
        for attribute in list(cast("dict[str, object]", fields).values())[:100]:
            yield from _ends(attribute, depth - 1)


def _of_descriptor(fd: int) -> Iterator[tuple[str, bool]]:
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode):
        yield f"{LOCAL}, a pipe", _is_broken(fd)
    elif stat.S_ISSOCK(mode):
        is_blocking = os.get_blocking(fd)
        with socket.socket(fileno=os.dup(fd)) as copy:
            # After socket.setdefaulttimeout() the new object has made the user's own socket non-blocking.
            os.set_blocking(fd, is_blocking)
            yield _of_socket(copy), _is_broken(fd)


def _of_socket(connection: socket.socket) -> str:
    if connection.family == socket.AF_UNIX:
        return f"{LOCAL}, a unix socket"
    try:
        host, port = connection.getpeername()[:2]
    except OSError:  # the other end is gone: its side of the connection tells at least whether it left the machine
        host, port = connection.getsockname()[0], 0
        return f"{LOCAL}, at {host}" if _is_loopback(str(host)) else f"{REMOTE}, from {host}"
    if host == connection.getsockname()[0]:
        return f"{LOCAL}, at {host}:{port}"
    return _of_host(str(host), port)


def _named_address(local_names: Mapping[str, Any]) -> str:
    for value in local_names.values():
        pair = cast("tuple[object, ...]", value)[:2] if isinstance(value, tuple) else ()
        match pair:
            case (str() as host, int() as port):
                return _of_host(host, port)
            case _:
                pass
    for name in _HOST_NAMES:
        value = local_names.get(name)
        if isinstance(value, str) and value:
            return _of_host(value, local_names.get("port", ""))
    return ""


def _of_host(host: str, port: object) -> str:
    return f"{f'{LOCAL}, at' if _is_loopback(host) else f'{REMOTE},'} {host}{f':{port}' if port else ''}"


def _is_loopback(host: str) -> bool:
    if host in ("localhost", "0.0.0.0", "::", ""):  # noqa: S104 - as the other end: this machine
        return True
    with suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    return False


def _is_broken(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    return any(events & _BROKEN for _, events in poll.poll(0))


def _command(args: object) -> str:
    words = " ".join(map(str, cast("Sequence[object]", args))) if isinstance(args, (list, tuple)) else str(args)
    return repr(words[:80])
