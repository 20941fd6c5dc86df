"""The preStop hook of a Ray pod: ranks leave the node, and checkpoints in memory go to disk.

    python -m dljob.runtime.leave SECONDS [NODE]

The kubelet starts it when somebody deletes, evicts, drains or preempts the pod, and sends SIGTERM when it returns. It
talks to processes of its own pod by their sockets, and needs neither Ray nor torch, nor the operator. It asks

 1. the node's agents to notify PrimeMaster, so that ranks move to another node if there is one;
 2. the node's savers to write what ranks have copied at once, and the last of it when no more ranks can leave;
 3. for the ranks' logs to be copied to the checkpoint volume;
 4. on the head, PrimeMaster to have all savers of the job do the same, since all of them end with the head.

It never fails: where no job runs, it returns at once. NODE is Ray's id of a node, for several raylets on one machine.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dljob.linux.socket_peer import peer
from dljob.logs import archive

ANSWER_BYTES = 64 << 10
CONNECT_S = 5.0
"""Seconds for a connection and for one answer of an agent."""
AGENT_S = 20.0
"""Most seconds for an agent that is being made: Ray starts its process beside those of the ranks."""
AGAIN_S = 0.05
"""Seconds between polls of an agent."""
SILENT_S = 5.0
"""Seconds without a request of PrimeMaster after which no rank is going to be moved."""
LEFT = 0.5
"""Share of the time that ranks have to leave; the rest is for the last save."""
LISTENS = "00010000"
"""Flag of a listening socket in /proc/net/unix. Source: Linux, __SO_ACCEPTCON in include/uapi/linux/net.h."""


KINDS = {"agent": ("agent",), "saver": ("early", "saver"), "master": ("master",)}
"""Connections per kind of socket: two to a saver.

The first one may be busy for long with an early flush; the last save is asked for on the other, beside it.
"""


def master_address(uid: str, node: str) -> str:
    """Return the address where PrimeMaster listens for the end of its pod: an abstract socket."""
    return f"\0dljob-master-{uid[:8]}-{node}-{os.getpid()}"


def job_of(address: str) -> str:
    """Return the first 8 characters of the uid of an address's job."""
    return address.split("-")[2][:8]


def addresses(table: str, node: str = "") -> Iterator[tuple[str, str]]:
    """Yield (kind, address) of agents, savers and masters that listen in this network namespace."""
    names = set[str]()
    for line in table.splitlines():
        words = line.split()
        # Eight columns: only a bound socket has a path. `@` stands for the zero byte of an abstract name.
        if len(words) == 8 and words[3] == LISTENS and words[7].startswith("@dljob-"):
            names.add(words[7][1:])
    for name in sorted(names):
        # Ray's node ids are cut to 12 characters: an abstract name has room for 107 bytes.
        kind, _, listener_node = name.split("-")[1:4] if name.count("-") > 2 else ("", "", "")
        if kind in KINDS and listener_node[:12] == (node or listener_node)[:12]:
            yield kind, f"\0{name}"


class AgentConnection:
    """A connection to an agent, a saver or a master.

    Raises OSError for a process of another pod: on the host's network, abstract sockets of all pods are visible.
    """

    def __init__(self, kind: str, address: str) -> None:
        self.kind, self.address = kind, address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM if kind == "master" else socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(CONNECT_S)
            self._socket.connect(address)
            pid, uid = peer(self._socket)
            # The kernel gives pid 0 for a process of another pid namespace, which is another pod.
            if not pid or uid != os.getuid():
                raise ConnectionRefusedError("not of this pod")
        except OSError:
            self.close()
            raise

    def ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer. Raises OSError or ValueError when none comes in time."""
        self._socket.settimeout(max(0.1, seconds))
        self._socket.sendall(json.dumps(question).encode() + b"\n" * (self.kind == "master"))
        return json.loads(self._socket.recv(ANSWER_BYTES))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class PodEnd:
    """The end of one pod within a number of seconds."""

    def __init__(self, lines: list[AgentConnection], seconds: float, reason: str) -> None:
        self._begin = time.monotonic()
        self._seconds = seconds
        self._why = reason
        self._lines = lines
        self.said: list[str] = []
        """Lines for the pod's log."""

    def run(self) -> None:
        """Flush early, let ranks leave, then save the last; every step stays within the time.

        The early flush runs while ranks leave, so that the last save has little left to write.
        """
        for line in self._of("early"):
            self._start(lambda line=line: self._save(line, "flush"))
        for line in self._of("agent"):
            self._let_leave(line)
        self.said += ["ranks could not be moved: the node has no agent"] * bool(jobs_without_agent(self._lines))
        last = [self._start(lambda line=line: self._save(line, "last")) for line in self._of("saver")]
        last += [self._start(lambda line=line: self._end_all(line)) for line in self._of("master")]
        # Beside the saves, not after them: all share the time that is left.
        last.append(self._start(self._keep_logs))
        for thread in last:
            thread.join(self._remaining)

    @property
    def _remaining(self) -> float:
        return max(0.1, self._begin + self._seconds - time.monotonic())

    def _of(self, kind: str) -> list[AgentConnection]:
        return [line for line in self._lines if line.kind == kind]

    def _start(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def _let_leave(self, agent: AgentConnection) -> None:
        """Announce the end of the node, and wait until its ranks have left or PrimeMaster will not move them."""
        end = self._begin + LEFT * self._seconds
        try:
            while time.monotonic() < end:
                answer = agent.ask({"leave": self._why}, CONNECT_S)
                if answer["may_go"] or answer["asked_s"] > SILENT_S:
                    self.said.append(answer["may_go"] or "PrimeMaster does not answer")
                    return
                time.sleep(AGAIN_S)
            self.said.append("ranks did not leave the node in time")
        except (OSError, ValueError) as error:
            self.said.append(f"the node's agent did not answer: {error}")

    def _save(self, saver: AgentConnection, how: str) -> None:
        try:
            # A second less than there is, so that the answer still comes before SIGTERM.
            answer = saver.ask({"op": how, "timeout_s": max(0.1, self._remaining - 1.0)}, self._remaining)
        except (OSError, ValueError) as error:
            # A failed early flush needs no line: the last save does all that it left.
            if how == "last":
                self.said.append(f"a saver did not answer: {error}")
            return
        steps = ", ".join(f"{name} step {step}" for name, step in sorted(answer["steps"].items())[:8])
        if how == "last" and steps:
            self.said.append(f"on disk: {steps}{'' if not answer['failed'] else ', but: ' + answer['failed']}")

    def _keep_logs(self) -> None:
        home = os.environ.get("DLJOB_HOME")
        failed = archive.keep_all(Path(home)) if home else ""
        if failed:
            self.said.append(failed)

    def _end_all(self, master: AgentConnection) -> None:
        with suppress(OSError, ValueError):
            answer = master.ask({"leave": self._why, "timeout_s": max(0.1, self._remaining - 1.0)}, self._remaining)
            self.said.append(answer["said"])


def jobs_without_agent(lines: list[AgentConnection]) -> set[str]:
    """Return the jobs that have a saver here but no agent.

    Their ranks are here, but without an agent PrimeMaster is not told to move them: the agent is being created.
    """
    saved, moved = ({job_of(line.address) for line in lines if line.kind == kind} for kind in ("saver", "agent"))
    return saved - moved


def opened(node: str, within_s: float) -> list[AgentConnection]:
    """Connect to all sockets of this pod; wait up to `within_s` for an agent that is being made, or made again."""
    end = time.monotonic() + within_s
    while True:
        lines: list[AgentConnection] = []
        with suppress(OSError), open("/proc/net/unix", encoding="utf-8", errors="replace") as table:  # noqa: PTH123
            for kind, address in addresses(table.read(), node):
                with suppress(OSError):
                    lines += [AgentConnection(kind_of_line, address) for kind_of_line in KINDS[kind]]
        # A saver without an agent: the agent is about to come, and without it no rank is moved.
        if not jobs_without_agent(lines) or time.monotonic() >= end:
            return lines
        for line in lines:
            line.close()
        time.sleep(AGAIN_S)


def say(words: str) -> None:
    """Write to the container's log, which is the output of its first process: the kubelet drops what a hook prints."""
    for log_path in (*["/proc/1/fd/1"] * ("POD_NAME" in os.environ), "/dev/stdout"):
        with suppress(OSError), open(log_path, "w", encoding="utf-8") as log:  # noqa: PTH123
            log.write(f"[dljob] {time.strftime('%H:%M:%S')} {words}\n")
            return


def main(argv: list[str]) -> int:
    """Run the hook. Always 0: the pod ends in any case, and a failed hook is only an event on it."""
    with suppress(Exception):  # a failure here cannot stop the pod's end; what was done is in its log already
        begin, node = time.monotonic(), argv[1] if len(argv) > 1 else ""
        reason = f"pod {os.environ.get('POD_NAME') or socket.gethostname()} is being ended"
        seconds = float(argv[0])
        lines = opened(node, min(AGENT_S, LEFT * seconds / 2))
        leaving = PodEnd(lines, seconds - (time.monotonic() - begin), reason)
        leaving.run()
        words = "; ".join(filter(None, leaving.said)) or "nothing to save"
        say(f"{reason}: {words} ({time.monotonic() - begin:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main(sys.argv[1:]))
