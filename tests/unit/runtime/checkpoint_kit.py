"""A saver and its ranks without Ray: each rank is a process that the test may kill."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dljob.runtime.checkpoint.book import Book
from dljob.runtime.checkpoint.client import CheckpointClient
from dljob.runtime.checkpoint.model import CheckpointLocation
from dljob.runtime.checkpoint.peers import Post
from dljob.runtime.checkpoint.saver import Saver


class Told:
    """A record of a saver's reports."""

    def __init__(self) -> None:
        self.words: list[tuple[str, str]] = []

    def __call__(self, kind: str, text: str) -> None:
        self.words.append((kind, text))

    def of(self, kind: str) -> list[str]:
        return [text for k, text in self.words if k == kind]


@contextmanager
def a_saver(
    others: Callable[[str], None] = lambda _: None, book: Book | None = None, post: Post | None = None
) -> Iterator[tuple[Saver, Told]]:
    told = Told()
    saver = Saver(f"@dljob-test-{secrets.token_hex(6)}", told, others, book, post)
    try:
        yield saver, told
    finally:
        saver.close()


def place(saver: Saver, folder: Path, **changes: Any) -> CheckpointLocation:
    values: dict[str, Any] = {
        "address": saver.address,
        "folder": str(folder),
        "name": f"trainer/{changes.get('rank', 0)}",
        "rank": 0,
        "world": 1,
        "attempt": 1,
        "number": 1,
        "incarnation": 1,
        "of": "trainer",
        "grace_s": 20.0,
    }
    return CheckpointLocation(**{**values, **changes})


def client(where: CheckpointLocation, log: list[str] | None = None) -> CheckpointClient:
    said = [] if log is None else log
    return CheckpointClient(lambda: asdict(where), said.append)


def copies(name: str) -> int:
    """How many descriptors of a rank's memory this process has."""
    found = 0
    for link in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):  # a thread closed it meanwhile
            found += f"dljob-checkpoint-{name}" in str(link.readlink())
    return found


class Rank:
    """A forked process that runs `body(client, tell)`; `heard` reads a line that it told."""

    def __init__(
        self, where: CheckpointLocation, body: Callable[[CheckpointClient, Callable[[str], None]], None]
    ) -> None:
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            try:
                body(client(where), lambda text: theirs.sendall(f"{text}\n".encode()))
            except Exception:  # noqa: BLE001 - a child must not run on as a second pytest
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        theirs.close()
        self._lines = ours.makefile("r")
        ours.close()

    def heard(self) -> str:
        return self._lines.readline().strip()

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)
        self.wait()

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
