"""The pause that `checkpoint.save` makes in a training loop, against one memcpy of the same bytes, turn by turn."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, runs

from dljob.runtime.checkpoint.client import CheckpointClient
from dljob.runtime.checkpoint.model import CheckpointLocation

SIZE = 256 << 20
TENSORS = 160
"""As many as a transformer of that size has, AdamW's included."""


def state() -> dict[str, Any]:
    """256 MiB of tensors of uneven sizes, and what else a trainer keeps."""
    left, sizes = SIZE // 4, list[int]()
    for n in range(TENSORS - 1):
        sizes.append(min(left // 2, SIZE // 4 // TENSORS * (1 + n % 3) // 2))
        left -= sizes[-1]
    tensors = {f"layers.{n}.weight": torch.rand(size) for n, size in enumerate([*sizes, left])}
    return {"model": tensors, "epoch": 3, "rng": torch.get_rng_state()}


def once(function: Callable[[], object]) -> float:
    """Its seconds."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def by_tensor(tensors: dict[str, torch.Tensor], target: mmap.mmap) -> None:
    """What memcpy takes for the same bytes where they are: glibc bypasses the caches only for far larger blocks."""
    here = ctypes.c_char.from_buffer(target)
    at = ctypes.addressof(here)
    for tensor in tensors.values():
        ctypes.memmove(at, tensor.data_ptr(), tensor.nbytes)
        at += tensor.nbytes
    del here


def on_disk(mine: CheckpointClient) -> float:
    """Seconds until it is on disk."""
    return once(lambda: mine.wait(300))


def agree(link: socket.socket) -> None:
    """What its agent and PrimeMaster do for a saver: whatever checkpoint it has counts."""
    while text := link.recv(64 << 10):
        message = json.loads(text)
        if message["op"] == "ask":
            link.send(json.dumps({"op": "done", "id": message["id"], "answer": {"why": ""}}).encode())


def main() -> None:
    """One row."""
    torch.set_num_threads(1)
    source, target = mmap.mmap(-1, SIZE), mmap.mmap(-1, SIZE)
    source.write(os.urandom(1 << 20) * (SIZE >> 20))
    target[:] = bytes(SIZE)
    view = memoryview(source)

    def memcpy() -> None:
        target[:] = view

    with tempfile.TemporaryDirectory() as folder:
        address = f"@dljob-bench-{secrets.token_hex(6)}"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "dljob.runtime.checkpoint.process", str(theirs.fileno()), address]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()]):
            theirs.close()
            ours.recv(1000)
            threading.Thread(target=agree, args=(ours,), daemon=True).start()
            place = CheckpointLocation(address, str(Path(folder) / "trainer"), "trainer/0", 0, 1, 1, 1, 1, "trainer")
            mine = CheckpointClient(lambda: asdict(place), lambda text: print(text, file=sys.stderr))
            whole = state()
            first = once(lambda: mine.save(0, whole, persist=True))
            disk = [on_disk(mine)]
            copies, pauses, busy, singly = list[float](), list[float](), list[float](), list[float]()
            for step in range(1, runs() + 1):
                copies.append(once(memcpy))
                singly.append(once(lambda: by_tensor(whole["model"], target)))
                pauses.append(once(lambda step=step: mine.save(step, whole, persist=True)))
                busy.append(
                    once(lambda step=step: mine.save(step, whole, persist=False))
                )  # the saver is at work beside
                disk.append(on_disk(mine))
            mine.close()
            ours.shutdown(socket.SHUT_RDWR)
    Row(
        "checkpoint-pause",
        "checkpoint.save of 256 MiB, from the second on, the saver idle before it",
        "<= 1.5 x one memcpy of the same bytes",
        median(pauses),
        1.5 * median(copies),
        samples={"save": pauses, "memcpy": copies, "memcpy, tensor by tensor": singly}
        | {"save while the saver writes": busy, "to disk": disk},
        note=f"{median(pauses) / median(copies):.2f} x memcpy; the first, which makes the memory: {first:.2f} s",
    ).emit()


if __name__ == "__main__":
    main()
