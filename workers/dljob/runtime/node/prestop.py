"""What a Ray pod does before it is told to end (preStop): what its ranks have in memory comes to disk, and they leave.

    python -m dljob.runtime.leave SECONDS [NODE]

Whoever deletes, evicts, drains or preempts the pod starts this, through the kubelet; SIGTERM comes when it returns. It
asks those of its own pod, by their sockets, and needs neither Ray nor torch, nor the operator, nor PrimeMaster:

 1. the node's agents tell PrimeMaster, so that the ranks leave for another node if there is one;
 2. the node's savers bring to disk what ranks have copied, and when nobody is left who may leave, the last of it;
 3. what ranks wrote comes to the volume of the checkpoints;
 4. on the head PrimeMaster has all savers of the job do so, since without a head all of them end.

It never fails: where nothing of a job runs it returns at once. NODE, for several raylets on one machine, is Ray's id.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dljob.runtime.logs import archive

ANSWER_BYTES = 64 << 10
CONNECT_S = 5.0
AGAIN_S = 0.05
SILENT_S = 5.0
"""An agent that PrimeMaster has not asked for so long has nobody who moves its ranks."""
LEFT = 0.5
"""The share of its time that ranks may take to leave; the rest is for the last save."""
LISTENS = "00010000"
"""The flag of a listening socket in /proc/net/unix. Source: Linux, __SO_ACCEPTCON in include/uapi/linux/net.h."""


KINDS = {"agent": ("agent",), "saver": ("early", "saver"), "master": ("master",)}
"""Lines to each; a saver may be busy for long with what is asked of it first, and is asked for the last save beside."""


def master_address(uid: str, node: str) -> str:
    """Where PrimeMaster hears that its pod is to end; an abstract name."""
    return f"\0dljob-master-{uid[:8]}-{node}-{os.getpid()}"


def job_of(address: str) -> str:
    """The first of the uid of the job that an address belongs to."""
    return address.split("-")[2][:8]


def addresses(table: str, node: str = "") -> Iterator[tuple[str, str]]:
    """(kind, address) of what listens in this pod's network: agents, savers and masters of jobs."""
    found = set[str]()
    for line in table.splitlines():
        words = line.split()
        if len(words) == 8 and words[3] == LISTENS and words[7].startswith("@dljob-"):
            found.add(words[7][1:])
    for name in sorted(found):
        kind, _, where = name.split("-")[1:4] if name.count("-") > 2 else ("", "", "")
        if kind in KINDS and where[:12] == (node or where)[:12]:
            yield kind, f"\0{name}"


class AgentConnection:
    """A connection to one of them. Raises OSError when it is not of this pod: the host's network has others', too."""

    def __init__(self, kind: str, address: str) -> None:
        self.kind, self.address = kind, address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM if kind == "master" else socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(CONNECT_S)
            self._socket.connect(address)
            pid, uid, _ = struct.unpack("3i", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if not pid or uid != os.getuid():
                raise ConnectionRefusedError("not of this pod")
        except OSError:
            self.close()
            raise

    def ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Its answer. Raises OSError or ValueError without one in time."""
        self._socket.settimeout(max(0.1, seconds))
        self._socket.sendall(json.dumps(question).encode() + b"\n" * (self.kind == "master"))
        return json.loads(self._socket.recv(ANSWER_BYTES))

    def close(self) -> None:
        """Close it."""
        self._socket.close()


class PodEnd:
    """One pod's end, within so many seconds."""

    def __init__(self, lines: list[AgentConnection], seconds: float, why: str) -> None:
        self._begin = time.monotonic()
        self._seconds = seconds
        self._why = why
        self._lines = lines
        self.said: list[str] = []
        """What the pod's log is told."""

    def run(self) -> None:
        """All of it."""
        for line in self._of("early"):
            self._start(lambda line=line: self._save(line, "flush"))
        for line in self._of("agent"):
            self._let_leave(line)
        self.said += ["no agent is there to have its ranks leave"] * bool(alone(self._lines))
        last = [self._start(lambda line=line: self._save(line, "last")) for line in self._of("saver")]
        last += [self._start(lambda line=line: self._end_all(line)) for line in self._of("master")]
        last.append(self._start(self._keep_logs))
        for thread in last:
            thread.join(self._left)

    @property
    def _left(self) -> float:
        return max(0.1, self._begin + self._seconds - time.monotonic())

    def _of(self, kind: str) -> list[AgentConnection]:
        return [line for line in self._lines if line.kind == kind]

    def _start(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def _let_leave(self, agent: AgentConnection) -> None:
        """Say that the node goes, and wait for its ranks while PrimeMaster may have them leave."""
        end = self._begin + LEFT * self._seconds
        try:
            while time.monotonic() < end:
                seen = agent.ask({"leave": self._why}, CONNECT_S)
                if seen["may_go"] or seen["asked_s"] > SILENT_S:
                    self.said.append(seen["may_go"] or "PrimeMaster says nothing")
                    return
                time.sleep(AGAIN_S)
            self.said.append("its ranks did not leave in time")
        except (OSError, ValueError) as error:
            self.said.append(f"the node's agent did not answer: {error}")

    def _save(self, saver: AgentConnection, how: str) -> None:
        try:
            said = saver.ask({"op": how, "timeout_s": max(0.1, self._left - 1.0)}, self._left)
        except (OSError, ValueError) as error:
            if how == "last":
                self.said.append(f"a saver did not answer: {error}")
            return
        steps = ", ".join(f"{name} step {step}" for name, step in sorted(said["steps"].items())[:8])
        if how == "last" and steps:
            self.said.append(f"on disk: {steps}{'' if not said['failed'] else ', but: ' + said['failed']}")

    def _keep_logs(self) -> None:
        home = os.environ.get("DLJOB_HOME")
        failed = archive.keep_all(Path(home)) if home else ""
        if failed:
            self.said.append(failed)

    def _end_all(self, master: AgentConnection) -> None:
        with suppress(OSError, ValueError):
            said = master.ask({"leave": self._why, "timeout_s": max(0.1, self._left - 1.0)}, self._left)
            self.said.append(said["said"])


def alone(lines: list[AgentConnection]) -> set[str]:
    """The jobs whose ranks have a saver here and no agent, without which nobody moves them."""
    saved, moved = ({job_of(line.address) for line in lines if line.kind == kind} for kind in ("saver", "agent"))
    return saved - moved


def opened(node: str, within_s: float) -> list[AgentConnection]:
    """Lines to all that listens in this pod. An agent that is being made, or made again, is waited for."""
    end = time.monotonic() + within_s
    while True:
        lines: list[AgentConnection] = []
        with suppress(OSError), open("/proc/net/unix", encoding="utf-8", errors="replace") as table:  # noqa: PTH123
            for kind, address in addresses(table.read(), node):
                with suppress(OSError):
                    lines += [AgentConnection(one, address) for one in KINDS[kind]]
        if not alone(lines) or time.monotonic() >= end:
            return lines
        for line in lines:
            line.close()
        time.sleep(AGAIN_S)


def say(words: str) -> None:
    """Into the container's log, which is that of its first process: nobody reads what a hook prints."""
    for where in (*["/proc/1/fd/1"] * ("POD_NAME" in os.environ), "/dev/stdout"):
        with suppress(OSError), open(where, "w", encoding="utf-8") as log:  # noqa: PTH123
            log.write(f"[dljob] {time.strftime('%H:%M:%S')} {words}\n")
            return


def main(argv: list[str]) -> int:
    """Always 0: the pod goes, whatever happens here."""
    with suppress(Exception):  # a preStop that fails delays no pod's end, and has told what it could
        begin, node = time.monotonic(), argv[1] if len(argv) > 1 else ""
        why = f"pod {os.environ.get('POD_NAME') or socket.gethostname()} is told to end"
        seconds = float(argv[0])
        lines = opened(node, min(CONNECT_S, LEFT * seconds))
        leaving = PodEnd(lines, seconds - (time.monotonic() - begin), why)
        leaving.run()
        words = "; ".join(filter(None, leaving.said)) or "nothing to save"
        say(f"{why}: {words} ({time.monotonic() - begin:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main(sys.argv[1:]))
