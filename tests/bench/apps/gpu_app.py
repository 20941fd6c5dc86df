"""A trainer whose state lies on a GPU: it saves and publishes it, in turn with bare copies of the same bytes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dljob import WeightChannel, checkpoint, current_worker, progress

SIZE = 2 << 30
TENSORS = 64
TURNS = 5


def seconds(function: Callable[[], object]) -> float:
    """Seconds of a call, with all work of the GPU before and in it."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def trains() -> dict[str, Any]:
    """Return medians in seconds; the first process dies by SIGKILL after its saves, and the second restores."""
    me, out = current_worker(), Path(current_worker().job_dir)
    state = {f"w{n}": torch.full((SIZE // TENSORS // 4,), float(n), device="cuda") for n in range(TENSORS)}
    if me.incarnation == 1:
        pinned = {name: torch.empty(one.shape, pin_memory=True) for name, one in state.items()}
        bare, paged, saved = list[float](), list[float](), list[float]()
        for step in range(1, TURNS + 1):
            bare.append(seconds(lambda: [pinned[name].copy_(one) for name, one in state.items()]))
            paged.append(seconds(lambda: {name: one.cpu() for name, one in state.items()}))
            saved.append(seconds(lambda step=step: checkpoint.save(step, state, persist=False)))
            progress(step)
        (out / "medians").write_text(f"{median(bare)} {median(paged)} {median(saved)}")
        os.kill(os.getpid(), signal.SIGKILL)
    restored = seconds(lambda: checkpoint.load(into=state))
    right = all(bool((state[f"w{n}"] == n).all().item()) for n in range(TENSORS))
    channel = WeightChannel("policy")
    published = [seconds(lambda step=step: channel.publish(step, state)) for step in range(1, TURNS + 1)]
    while not (out / "received").exists():
        time.sleep(0.02)
    pinned_s, paged_s, saved_s = map(float, (out / "medians").read_text().split())
    return {
        "GiB": SIZE >> 30,
        "copy to pinned memory": pinned_s,
        "copy to new memory": paged_s,
        "save": saved_s,
        "restore": restored,
        "restored right": right,
        "publish": median(published),
        "receive": float((out / "received").read_text()),
    }


def receives() -> None:
    """Receive one version after another; leave the median of the seconds after the first byte is asked for."""
    channel, took = WeightChannel("policy"), list[float]()
    version = 0
    while version < TURNS:
        begin = time.perf_counter()
        version, _ = channel.receive()
        took.append(time.perf_counter() - begin)
    Path(current_worker().job_dir, "received").write_text(str(median(took[1:] or took)))
    current_worker().stopping.wait()
