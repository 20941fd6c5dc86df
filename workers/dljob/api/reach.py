"""Way from a job's registry entry to the running job, for processes other than its runner."""

from __future__ import annotations

import os
import shlex
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dljob.api import registry
from dljob.errors import UnreachableError
from dljob.runtime.control_socket import messages
from dljob.runtime.control_socket.client import LocalConnection, NoAnswerError, SocketLine

if TYPE_CHECKING:
    from dljob.api.registry import RegistryEntry

PROBE_S = 1.0
"""Time, in seconds, for a job on another's Ray to answer at its socket, before that Ray is asked."""


@contextmanager
def reach(record: RegistryEntry) -> Generator[LocalConnection]:
    """Open a connection to a job: by its control socket, else, on a Ray that outlives the command, through that Ray.

    Raises:
        UnreachableError: nothing answers for the job within 10 s (the message lists the attempts), or its folder
            belongs to another user.
    """
    owner = check_owner(record)
    line = SocketLine(record.folder)
    # With a runner the job is on this machine. On a Ray elsewhere the socket file may be one that nothing serves,
    # on a home folder shared by machines (ADR 56).
    silence_reason = "" if record.runner else _silence(record, line)
    if not silence_reason:
        yield LocalConnection(record.name, record.uid, record.folder, line, why_gone=lambda: why_unreached(record))
        return
    if os.geteuid() != owner:  # root may use the socket, which carries only JSON; joining a Ray would run its pickles
        raise _foreign(record, owner)
    from dljob.runtime.job.socket_relay import Relay

    with Relay(record.address, record.uid, dict(record.environment), tried=silence_reason) as relay:
        yield LocalConnection(record.name, record.uid, record.folder, relay, why_gone=lambda: "")


def check_owner(record: RegistryEntry) -> int:
    """Return the user of a job, whom this user may act for.

    Raises:
        UnreachableError: the job belongs to another user, or its folder cannot be read.
    """
    try:
        owner = record.folder.stat().st_uid
    except OSError as error:
        raise UnreachableError(
            f"the folder of job {record.name} cannot be read: {error.strerror}: {record.dir}"
        ) from None
    # The control socket would refuse as well; this says whose job it is, and how to reach it.
    if os.geteuid() not in (owner, 0):
        raise _foreign(record, owner)
    return owner


def _foreign(record: RegistryEntry, owner: int) -> UnreachableError:
    home = shlex.quote(str(registry.home()))
    return UnreachableError(
        f"job {record.name} belongs to user {owner}, and this is user {os.geteuid()}: {record.dir}",
        hint=f"order it about as its owner: sudo -u '#{owner}' DLJOB_HOME={home} dljob ...",
    )


def why_unreached(record: RegistryEntry) -> str:
    """Return why nothing of the job will ever answer here; empty while it may."""
    if host := record.elsewhere:
        return f"job {record.name} runs on {host}, or was killed there: no command reaches it from this host"
    if not record.stale:
        return ""
    return f"job {record.name} is lost: {record.why_lost()[1]}"


def _silence(record: RegistryEntry, line: SocketLine) -> str:
    """Return why the job does not answer at its socket; empty when it does."""
    if not record.socket:
        return record.socket_trouble or f"job.json in {record.dir} names no control socket on this machine"
    try:
        messages.result(line.ask(messages.request(record.uid, "pids", ()), PROBE_S))
    except (NoAnswerError, UnreachableError, ValueError) as error:
        return str(error)
    return ""
