"""Listener for the preStop command of PrimeMaster's own pod (`dljob.runtime.leave`), which comes before SIGTERM.

When the head ends, all nodes of the cluster end a few seconds later without notice: so all savers save for the last
time while the head is still there. With `gcsFaultTolerance` the nodes survive the head; it then waits only for nodes
that leave together with it, because a checkpoint counts once PrimeMaster has journaled it. A job that is ending saves
by itself, and the head waits for its end. On any other node than the head there is nothing to do: PrimeMaster is
restarted elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dljob.linux.socket_peer import peer
from dljob.master.state import events as ev
from dljob.master.state.views import Clue
from dljob.runtime.controller.master_loop import MasterLoop, until
from dljob.runtime.node.prestop import master_address
from dljob.telemetry.evidence import Source

TOGETHER_S = 2.0
"""Time (s) within which the preStop commands of pods that are deleted together arrive."""
READY_S = 10.0
"""Seconds to wait for a master that still replays its journal."""


async def serve(shell: MasterLoop, uid: str) -> None:
    """Answer the preStop commands of this pod until the process ends; callers of other users are ignored."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, KeyError):
            # An abstract socket has no file permissions, so the kernel's word about the caller's user decides.
            if peer(writer.get_extra_info("socket"))[1] == os.getuid():
                outcome = await save_node(shell, json.loads(await reader.readline()))
                writer.write(json.dumps({"said": outcome}).encode())
                await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(answer, master_address(uid, shell.backend.own_node()))
    await server.serve_forever()


async def save_node(shell: MasterLoop, asked: Mapping[str, Any]) -> str:
    """Save all that must be saved before this node leaves.

    Args:
        shell: the master's loop.
        asked: `leave`, why the pod ends, and `timeout_s`, how long this may take.

    Returns:
        What was done or could not be, in words; empty where there was nothing to do.
    """
    await until(shell.changed, lambda: shell.recovered or shell.final is not None, READY_S)
    own_node = shell.backend.own_node()
    head = any(node.id == own_node and node.head for node in shell.state.nodes)
    if not shell.recovered or shell.final is not None or not head:
        return ""
    if shell.aborted or shell.state.verdict is not None:  # the job's end has all savers save
        ended = await until(shell.changed, lambda: shell.final is not None, asked["timeout_s"])
        return "the job has ended" if ended else "the job is ending, and not all is on disk yet"
    await shell.offer(ev.CauseLearned(f"node/{own_node}", (Clue(Source.NOTICE.value, str(asked["leave"])),)))
    if shell.setup.spec.gcs_fault_tolerance is not None:
        await asyncio.sleep(TOGETHER_S)
        is_alone = await until(shell.changed, lambda: not set(shell.state.departures) - {own_node}, asked["timeout_s"])
        return "" if is_alone else "nodes that go as well have not gone yet"
    # The other nodes' own preStop commands must not wait for their ranks to move: there is nowhere to move to.
    shell.nodes.all_go = "the head goes, and all nodes with it"
    failed = await shell.executor.last_copies(float(asked["timeout_s"]))
    return failed or "the savers of all nodes have saved"
