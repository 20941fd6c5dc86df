"""The saver's agent: a Ray actor per node with ranks that save. It starts the saver, and its end is the saver's.

The saver itself is a process below nobody (`checkpoint.process`): neither the end of a rank, nor of this actor, nor of
the raylet takes it along before what it holds is on disk.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from typing import Any, ClassVar

import ray
from ray.exceptions import RayTaskError

from dljob.errors import CheckpointError
from dljob.runtime import keepers
from dljob.runtime.checkpoint.carrying import Inbox
from dljob.runtime.checkpoint.wire import Wire
from dljob.runtime.guard import EndCode, Guard, Lease, end
from dljob.runtime.messages import JobInfo
from dljob.runtime.saver_peers import PeerLink

UP_S = 30.0
FLUSH_S = 60.0
"""How long the savers of other nodes are waited for."""
ASK_S = 20.0
AGAIN_S = 0.1
_BOOT = """import json, sys
sys.path[:] = json.loads(sys.argv[1])
from dljob.runtime.checkpoint.process import main
main(int(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
"""


class SaverAgent:
    """The actor."""

    concurrency_groups: ClassVar[dict[str, int]] = {"ctl": 64}

    def __init__(self, job: JobInfo) -> None:
        self._job = job
        self._node: str = ray.get_runtime_context().get_node_id()
        self._address = f"@dljob-saver-{job.uid[:8]}-{self._node[:12]}-{secrets.token_hex(8)}"
        self._up = threading.Event()
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._asked: dict[int, tuple[threading.Event, list[tuple[dict[str, Any], list[int]]]]] = {}
        self._inbox = Inbox(self._order)
        self._peers = PeerLink(job, self._node)
        self._lease = Lease(job.lease_s)
        self._guard = Guard(self._lease, lambda: end(EndCode.SIGTERM, "SIGTERM from outside"))
        self._wire = self._start()
        threading.Thread(target=self._read, name="dljob-saver", daemon=True).start()
        keepers.follow_master(job, self._lease)

    # -- what hosts, other agents and PrimeMaster ask

    @ray.method(concurrency_group="ctl")
    def address(self) -> str:
        """The saver's socket, once it serves."""
        if not self._up.wait(UP_S):
            raise CheckpointError(f"the saver did not come up within {UP_S:g} s")
        return self._address

    @ray.method(concurrency_group="ctl")
    def flush(self, timeout_s: float, alive: bool) -> str:  # noqa: FBT001 - Ray's calls are by position
        """Bring to disk what dead ranks left, `alive`: all that is held; what is wrong, else empty."""
        return self._ordered({"op": "flush", "timeout_s": timeout_s, "alive": alive}, timeout_s)

    @ray.method(concurrency_group="ctl")
    def last(self, timeout_s: float) -> str:
        """Bring to disk all that is held, and let the ranks save no more; what is wrong, else empty."""
        return self._ordered({"op": "last", "timeout_s": timeout_s}, timeout_s)

    @ray.method(concurrency_group="ctl")
    def bring(self, timeout_s: float, folder: str) -> str:
        """Bring to disk what is kept of a world (empty: of all) for other nodes; what is wrong, else empty."""
        self._inbox.drop(folder)
        return self._ordered({"op": "bring", "timeout_s": timeout_s, "folder": folder}, timeout_s)

    # -- what the agent of a saver asks that has its copies here

    @ray.method(concurrency_group="ctl")
    def peer_begin(self, offer: dict[str, Any]) -> str:
        """See carrying.Peer."""
        return self._inbox.begin(offer)

    @ray.method(concurrency_group="ctl")
    def peer_piece(self, offer: dict[str, Any], at: int, data: bytes) -> None:
        """See carrying.Peer."""
        self._inbox.piece(offer, at, data)

    @ray.method(concurrency_group="ctl")
    def peer_finish(self, offer: dict[str, Any], crc: int | None) -> str:
        """See carrying.Peer."""
        return self._inbox.finish(offer, crc)

    @ray.method(concurrency_group="ctl")
    def peer_forget(self, rows: list[dict[str, Any]]) -> None:
        """See peers.Post."""
        self._order({"op": "forget", "rows": rows})

    # -- the saver's process

    def _start(self) -> Wire:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = json.dumps([p for p in sys.path if p])
        command = [sys.executable, "-c", _BOOT, path, str(theirs.fileno()), self._address, str(self._job.save_grace_s)]
        first = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True, cwd="/"
        )
        theirs.close()
        first.wait()
        return Wire(ours)

    def _read(self) -> None:
        while (got := self._wire.receive()) is not None:
            message, fds = got
            match message["op"]:
                case "up":
                    self._up.set()
                case "told":
                    print(f"[dljob] checkpoint: {message['text']}", flush=True)  # noqa: T201 - into the actor's log
                case "forget":
                    self._peers.forget(message["rows"])
                case "others":
                    threading.Thread(target=self._others, args=(message["id"], message["folder"]), daemon=True).start()
                case "ask":
                    threading.Thread(target=self._ask, args=(message["id"], message["question"]), daemon=True).start()
                case "copy":
                    threading.Thread(
                        target=self._copy, args=(message["id"], message["offer"], fds), daemon=True
                    ).start()
                case _:
                    with self._lock:
                        event, said = self._asked.pop(message["id"])
                    said.append((message, fds))
                    event.set()
        end(EndCode.HELPER_GONE, "the saver is gone")

    def _order(self, order: dict[str, Any], timeout_s: float | None = None) -> tuple[dict[str, Any], list[int]] | None:
        """The saver's answer; None without one in time. It ends this process when it goes away."""
        number, asked = next(self._ids), (threading.Event(), list[tuple[dict[str, Any], list[int]]]())
        with self._lock:
            self._asked[number] = asked
        self._say({**order, "id": number})
        return asked[1][0] if asked[0].wait(timeout_s) else None

    def _ordered(self, order: dict[str, Any], timeout_s: float) -> str:
        said = self._order(order, timeout_s + 1.0)
        return said[0]["failed"] if said else f"no answer within {timeout_s:g} s"

    def _say(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._wire.send(message)

    def _copy(self, number: int, offer: dict[str, Any], fds: list[int]) -> None:
        failed = self._peers.carry(offer, fds[0])
        os.close(fds[0])
        self._say({"op": "done", "id": number, "answer": {"failed": failed}})

    def _others(self, number: int, folder: str) -> None:
        """Have the savers of other nodes flush, then bring what they keep for nodes that have not."""
        with contextlib.suppress(Exception):
            others = self._peers.others()
            ray.wait([o.flush.remote(FLUSH_S, False) for o in others], num_returns=len(others), timeout=FLUSH_S)
            ray.wait([o.bring.remote(FLUSH_S, folder) for o in others], num_returns=len(others), timeout=FLUSH_S)
        self._say({"op": "done", "id": number})

    def _ask(self, number: int, question: dict[str, Any]) -> None:
        """Have PrimeMaster answer, once there is one: as long as this actor lives, one may come.

        The answer is None when it writes nothing down any more.
        """
        answer: dict[str, Any] | None = None
        while answer is None:
            try:
                master: Any = ray.get_actor(self._job.master, self._job.namespace)
                said: Any = ray.get(master.saves.remote(question, self._node), timeout=ASK_S)
                if "gone" in said:
                    break
                answer = None if "later" in said else said
            except Exception as error:  # noqa: BLE001 - a master that is away comes back; else the lease ends us
                if isinstance(error, RayTaskError):
                    print(f"[dljob] checkpoint: PrimeMaster cannot answer: {error}", flush=True)  # noqa: T201
                time.sleep(AGAIN_S)
        self._say({"op": "done", "id": number, "answer": answer})
