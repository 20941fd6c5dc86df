"""User code of the tests of the transports `collective` and `rdt`: one publishes, the others receive and say so."""

from __future__ import annotations

import itertools
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.experimental.rdt.tensor_transport_manager import (
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
)

from dljob import WeightChannel, current_worker

SIZE = 9 << 20


def say(name: str, **said: Any) -> None:
    """A file of this rank's incarnation."""
    me = current_worker()
    path = Path(me.job_dir) / f"{name}-{me.role}-{me.rank}-{me.incarnation}"
    path.with_suffix(".tmp").write_text(json.dumps({"pid": os.getpid(), **said}))
    path.with_suffix(".tmp").rename(path)


def wait_for(name: str) -> None:
    """Until the test, or another rank, has written this file."""
    while not (Path(current_worker().job_dir) / name).exists():
        time.sleep(0.02)


def state(version: int) -> dict[str, Any]:
    """What is published as a version: two arrays, a tensor, something small, nothing."""
    ramp = np.arange(SIZE, dtype=np.uint8) * version
    return {"a": ramp, "b": torch.full((3, 5), float(version)), "c": [np.ones(version), None], "d": np.zeros(0)}


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Byte by byte."""
    return all(
        (
            np.array_equal(one["a"], other["a"]),
            torch.equal(one["b"], other["b"]),
            np.array_equal(one["c"][0], other["c"][0]),
            one["d"].size == 0,
        )
    )


@dataclass
class Where(TensorTransportMetadata):
    """Where the tensors of an object are."""

    paths: tuple[str, ...] = ()


class Files(TensorTransportManager):
    """A one-sided tensor transport of the user's: the publisher writes files, who gets reads them."""

    count = itertools.count()

    def tensor_transport_backend(self) -> str:
        return "FILES"

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Where:
        folder = Path(current_worker().job_dir)
        paths = []
        for tensor in rdt_object:
            paths.append(str(folder / f"tensor-{os.getpid()}-{next(self.count)}"))
            Path(paths[-1]).write_bytes(tensor.numpy().tobytes())
        return Where([(each.shape, each.dtype) for each in rdt_object], "cpu", tuple(paths))

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: Any = None) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    def recv_multiple_tensors(self, obj_id: str, tensor_transport_metadata: Any, *_: Any) -> list[Any]:
        paths = tensor_transport_metadata.paths
        return [torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8) for path in paths]

    def send_multiple_tensors(self, *_: Any) -> None:
        raise NotImplementedError

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: list[Any]) -> None:
        for path in tensor_transport_meta.paths:
            Path(path).unlink()

    def abort_transport(self, *_: Any) -> None:
        pass


def channels() -> tuple[WeightChannel, WeightChannel]:
    """One by the group, one by the files."""
    ray.experimental.register_tensor_transport("files", ["cpu"], Files, torch.Tensor)
    group = WeightChannel("policy", transport="collective", group="weights")
    return group, WeightChannel("direct", transport="rdt", tensor_transport="files")


def publish() -> None:
    """Version 1 to all; version 2 once a reader that died is back; then one that nobody reads."""
    group, direct = channels()
    for version in (1, 2):
        wait_for(f"go-{version}")
        while not group.ready:
            time.sleep(0.02)
        begin = time.monotonic()
        group.publish(version, state(version))
        took = time.monotonic() - begin
        direct.publish(version, state(version))
        say(f"sent-{version}", by=[group.came_by, direct.came_by], took=took)
    wait_for("go-3")
    direct.publish(3, state(3))
    wait_for("end")


def receive() -> None:
    """Says of each version what it came by."""
    group, direct = channels()
    say("ready")
    while True:
        version, first = group.receive(120)
        other, second = direct.receive(120)
        right = version == other and equal(first, state(version)) and equal(second, state(version))
        say(f"got-{version}", right=right, by=[group.came_by, direct.came_by])
        if version == 2:
            break
    wait_for("end")


def script() -> None:
    """Reads both without Ray: the group serves it too, rdt does not."""
    group = WeightChannel("policy", transport="collective", group="weights")
    direct = WeightChannel("direct")
    say("ready")
    for version in (1, 2):
        seen, first = group.receive(120)
        other, second = direct.receive(120)
        right = seen == other == version and equal(first, state(version)) and equal(second, state(version))
        say(f"got-{version}", right=right, by=[group.came_by, direct.came_by])
    wait_for("end")


if __name__ == "__main__":
    script()
