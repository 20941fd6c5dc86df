"""The saver's agent: a Ray actor on each node with ranks that save. It starts the saver, and the saver ends after it.

The saver itself is a process re-parented away from Ray (`checkpoint.process`): it survives the end of a rank, of this
actor, and of the raylet until everything that it holds is on disk.
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
from dljob.runtime.backend.masters import find_master
from dljob.runtime.checkpoint.carrying import Inbox
from dljob.runtime.checkpoint.saver_peers import PeerLink
from dljob.runtime.checkpoint.wire import Wire
from dljob.runtime.process.guard import EndCode, Guard, Lease, end
from dljob.runtime.process.messages import JobInfo
from dljob.runtime.rpc import storage_actors

UP_S = 30.0
"""Seconds for the saver to come up."""
FLUSH_S = 60.0
"""Seconds for which the savers of other nodes are awaited."""
ASK_S = 20.0
"""Seconds for one call to PrimeMaster; a pause of AGAIN_S follows a failed one."""
AGAIN_S = 0.1
_BOOT = """import json, sys
sys.path[:] = json.loads(sys.argv[1])
from dljob.runtime.checkpoint.process import main
main(int(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
"""


class SaverAgent:
    """The actor. Threads of its `ctl` group serve ranks' hosts, the agents of other nodes and PrimeMaster."""

    concurrency_groups: ClassVar[dict[str, int]] = {"ctl": 64}

    def __init__(self, job: JobInfo) -> None:
        self._job = job
        self._node: str = ray.get_runtime_context().get_node_id()
        # A random suffix: a saver that outlives its agent still has the former address.
        self._address = f"@dljob-saver-{job.uid[:8]}-{self._node[:12]}-{secrets.token_hex(8)}"
        self._up = threading.Event()
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._open_questions: dict[int, tuple[threading.Event, list[tuple[dict[str, Any], list[int]]]]] = {}
        self._inbox = Inbox(self._order)
        self._peers = PeerLink(job, self._node)
        self._lease = Lease(job.lease_s)
        self._guard = Guard(self._lease, lambda: end(EndCode.SIGTERM, "SIGTERM from outside"))
        self._wire = self._start()
        threading.Thread(target=self._read, name="dljob-saver", daemon=True).start()
        storage_actors.follow_master(job, self._lease)

    # -- calls of hosts, other agents and PrimeMaster

    @ray.method(concurrency_group="ctl")
    def address(self) -> str:
        """Return the saver's socket, once it serves.

        Raises:
            CheckpointError: It does not serve after UP_S seconds.
        """
        if not self._up.wait(UP_S):
            raise CheckpointError(f"the saver did not come up within {UP_S:g} s")
        return self._address

    @ray.method(concurrency_group="ctl")
    def flush(self, timeout_s: float, alive: bool) -> str:  # noqa: FBT001 - Ray's calls are by position
        """Write the copies of dead ranks to disk, with `alive` those of living ones; return what failed, else empty."""
        return self._run_order({"op": "flush", "timeout_s": timeout_s, "alive": alive}, timeout_s)

    @ray.method(concurrency_group="ctl")
    def last(self, timeout_s: float) -> str:
        """Write all copies to disk and let the ranks save no more (the node is drained).

        Return what failed, else empty.
        """
        return self._run_order({"op": "last", "timeout_s": timeout_s}, timeout_s)

    @ray.method(concurrency_group="ctl")
    def bring(self, timeout_s: float, folder: str) -> str:
        """Write the copies of a world (empty: all) that are kept for other nodes to disk.

        Return what failed, else empty.
        """
        # Copies that are still arriving come too late for the decision.
        self._inbox.drop(folder)
        return self._run_order({"op": "bring", "timeout_s": timeout_s, "folder": folder}, timeout_s)

    # -- calls of the agents whose savers keep copies here

    @ray.method(concurrency_group="ctl")
    def peer_begin(self, offer: dict[str, Any]) -> str:
        """Implement `carrying.PeerAgent.begin`."""
        return self._inbox.begin(offer)

    @ray.method(concurrency_group="ctl")
    def peer_piece(self, offer: dict[str, Any], at: int, data: bytes) -> None:
        """Implement `carrying.PeerAgent.piece`."""
        self._inbox.piece(offer, at, data)

    @ray.method(concurrency_group="ctl")
    def peer_finish(self, offer: dict[str, Any], crc: int | None) -> str:
        """Implement `carrying.PeerAgent.finish`."""
        return self._inbox.finish(offer, crc)

    @ray.method(concurrency_group="ctl")
    def peer_forget(self, rows: list[dict[str, Any]]) -> None:
        """Drop copies that their owner no longer needs (`peers.Post.forget`)."""
        self._order({"op": "forget", "rows": rows})

    # -- the saver's process

    def _start(self) -> Wire:
        agent_end, saver_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = json.dumps([p for p in sys.path if p])
        # sys.path goes along as text: Ray extends it at run time (the job's code), which a new interpreter would not
        # know.
        command = [
            sys.executable,
            "-c",
            _BOOT,
            path,
            str(saver_end.fileno()),
            self._address,
            str(self._job.save_grace_s),
        ]
        # A session of its own: a signal to the actor's process group must not reach the saver.
        first = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=(saver_end.fileno(),), start_new_session=True, cwd="/"
        )
        saver_end.close()
        # It forks and exits at once; without the wait it would stay a zombie of this actor.
        first.wait()
        return Wire(agent_end)

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
                    # A thread each: these take minutes, and the socket has to be read meanwhile.
                    threading.Thread(
                        target=self._flush_others, args=(message["id"], message["folder"]), daemon=True
                    ).start()
                case "ask":
                    threading.Thread(target=self._ask, args=(message["id"], message["question"]), daemon=True).start()
                case "copy":
                    threading.Thread(
                        target=self._copy, args=(message["id"], message["offer"], fds), daemon=True
                    ).start()
                case _:
                    self._on_answer(message, fds)
        # An agent without a saver would hold the node's name; the next rank that saves makes a new pair.
        end(EndCode.HELPER_GONE, "the saver is gone")

    def _order(self, order: dict[str, Any], timeout_s: float | None = None) -> tuple[dict[str, Any], list[int]] | None:
        """Send an order and return the saver's answer; None without one in time. A lost saver ends this process."""
        number, question = next(self._ids), (threading.Event(), list[tuple[dict[str, Any], list[int]]]())
        with self._lock:
            self._open_questions[number] = question
        self._say({**order, "id": number})
        question[0].wait(timeout_s)
        with self._lock:
            self._open_questions.pop(number, None)
        # Of an answer that came meanwhile nothing is lost: `_on_answer` fills it in under the lock.
        return question[1][0] if question[1] else None

    def _on_answer(self, message: dict[str, Any], fds: list[int]) -> None:
        """Hand an answer to the thread that waits for it; a late one finds nobody, and its descriptors are closed."""
        with self._lock:
            question = self._open_questions.pop(message["id"], None)
            if question is not None:
                question[1].append((message, fds))
                question[0].set()
        for fd in fds if question is None else ():
            os.close(fd)

    def _run_order(self, order: dict[str, Any], timeout_s: float) -> str:
        answer = self._order(order, timeout_s + 1.0)
        return answer[0]["failed"] if answer else f"no answer within {timeout_s:g} s"

    def _say(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._wire.send(message)

    def _copy(self, number: int, offer: dict[str, Any], fds: list[int]) -> None:
        failed = self._peers.carry(offer, fds[0])
        os.close(fds[0])
        self._say({"op": "done", "id": number, "answer": {"failed": failed}})

    def _flush_others(self, number: int, folder: str) -> None:
        """Make the savers of other nodes flush, then write the copies that they keep for nodes that have not."""
        try:
            others = self._peers.other_savers()
            ray.wait([o.flush.remote(FLUSH_S, False) for o in others], num_returns=len(others), timeout=FLUSH_S)
            # After all flushes: a copy that its owner has just written need not be written by the peer.
            ray.wait([o.bring.remote(FLUSH_S, folder) for o in others], num_returns=len(others), timeout=FLUSH_S)
        except Exception as error:  # noqa: BLE001 - what is on disk is restored from, and the answer must come
            print(f"[dljob] the savers of other nodes were not all asked to flush: {error!r}", flush=True)  # noqa: T201
        self._say({"op": "done", "id": number})

    def _ask(self, number: int, question: dict[str, Any]) -> None:
        """Let PrimeMaster answer a question; wait for a new one while it is away.

        The answer is None once it records nothing any more (the job has ended). A lease ends this actor, and with it
        the wait.
        """
        answer: dict[str, Any] | None = None
        logged_error = ""
        while answer is None:
            try:
                master: Any = find_master(self._job)
                reply: Any = ray.get(master.saves.remote(question, self._node), timeout=ASK_S)
                if "gone" in reply:
                    break
                answer = None if "later" in reply else reply
            except Exception as error:  # noqa: BLE001 - a master that is away comes back; else the lease ends us
                if isinstance(error, RayTaskError) and logged_error != (logged_error := str(error)):
                    print(f"[dljob] checkpoint: PrimeMaster cannot answer: {error}", flush=True)  # noqa: T201
                time.sleep(AGAIN_S)
        self._say({"op": "done", "id": number, "answer": answer})
