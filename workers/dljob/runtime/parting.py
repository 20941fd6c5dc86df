"""PrimeMaster hears from its own pod that the pod is to end (`dljob.runtime.leave`), before SIGTERM comes.

Without the head all nodes of a cluster end, a few seconds later and without a word: so all savers save for the last
time while the head is still there. Where what Ray knows outlives the head (`gcsFaultTolerance`) they go on without it;
then the head only waits for nodes that go with it, as checkpoints count when PrimeMaster has heard of them. A job that
is ending saves for the last time by itself, and the head waits for that. On any other node PrimeMaster goes on
elsewhere, and nothing is to be done.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dljob.master import events as ev
from dljob.master.views import Clue
from dljob.runtime.agent_line import peer
from dljob.runtime.leave import master_address
from dljob.runtime.shell import Shell, until
from dljob.telemetry.evidence import Source

TOGETHER_S = 2.0
"""Pods that are deleted together say so within this time."""
READY_S = 10.0
"""A master that reads its journal yet is waited for so long."""


async def serve(shell: Shell, uid: str) -> None:
    """Answer whoever ends this pod, until the process ends."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, KeyError):
            if peer(writer.get_extra_info("socket"))[1] == os.getuid():
                said = await part(shell, json.loads(await reader.readline()))
                writer.write(json.dumps({"said": said}).encode())
                await writer.drain()
        writer.close()

    with suppress(OSError):
        server = await asyncio.start_unix_server(answer, master_address(uid, shell.backend.here()))
        await server.serve_forever()


async def part(shell: Shell, asked: Mapping[str, Any]) -> str:
    """Have everything saved that is to be saved before this node goes; in words."""
    await until(shell.changed, lambda: shell.recovered or shell.final is not None, READY_S)
    here = shell.backend.here()
    head = any(node.id == here and node.head for node in shell.state.nodes)
    if not shell.recovered or shell.final is not None or not head:
        return ""
    if shell.aborted or shell.state.verdict is not None:  # the job's end has all savers save
        ended = await until(shell.changed, lambda: shell.final is not None, asked["timeout_s"])
        return "the job has ended" if ended else "the job is ending, and not all is on disk yet"
    await shell.offer(ev.CauseLearned(f"node/{here}", (Clue(Source.NOTICE.value, str(asked["leave"])),)))
    if shell.setup.spec.gcs_fault_tolerance is not None:
        await asyncio.sleep(TOGETHER_S)
        alone = await until(shell.changed, lambda: not set(shell.state.departures) - {here}, asked["timeout_s"])
        return "" if alone else "nodes that go as well have not gone yet"
    shell.nodes.all_go = "the head goes, and all nodes with it"
    failed = await shell.executor.last_copies(float(asked["timeout_s"]))
    return failed or "the savers of all nodes have saved"
