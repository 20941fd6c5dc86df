"""The transport `rdt`: Ray Direct Transport carries the buckets from process to process, past the object store.

It uses `ray.put(_tensor_transport=...)` of Ray 2.60, which one-sided transports support: the reader fetches while the
publisher takes no part, so no driver must know both. Two-sided ones (GLOO, NCCL) are refused: they move a tensor only
as an argument between two actors whose handles a third one has. `collective` serves that case.

Workarounds for Ray: it shares memory with the publisher (a copy is put); notes of borrowed tensors are never dropped
(ray-project/ray#57962: `forget`); an actor without the concurrency group `_ray_system` never frees.
"""

from __future__ import annotations

import importlib
import secrets
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import ray

from dljob.errors import UsageError
from dljob.ray_private import forget_borrowed, is_one_sided, put_by, tensor_transports, transport_manager
from dljob.runtime.process.context import current_worker
from dljob.runtime.queues.storage_client import StorageClient
from dljob.runtime.weights.buckets import bytes_of, joined
from dljob.runtime.weights.ray_transport import RayCarrier
from dljob.runtime.weights.transport import Buckets, WeightTransport

NIXL = "NIXL"
_running_receives = Counter[str]()
"""By address, calls of `receive` in this process: all of them use the same notes of Ray."""
_receives_lock = threading.Lock()


def usable(subject: str, name: str) -> str:
    """Return Ray's name of a tensor transport.

    Raises:
        UsageError: Ray has none of that name, or it cannot carry a channel; the message says why.
    """
    try:
        importlib.import_module("torch")  # without it Ray does not know its own transports
    except ImportError as error:
        raise UsageError(
            f"{subject}: the transport rdt needs torch: {error}", hint="pip install 'dljob[torch]'"
        ) from error
    known, full = tensor_transports(), name.upper()
    if full not in known:
        hint = f"there are: {', '.join(sorted(known))}; ray.experimental.register_tensor_transport adds others"
        raise UsageError(f"{subject}: Ray has no tensor transport {name!r}", hint=hint)
    if not is_one_sided(full):
        raise UsageError(
            f"{subject}: Ray's {full} is two-sided: it moves tensors between two actors only when a third, which has "
            "both handles, passes one's result to the other, and ray.put refuses it",
            hint='transport="collective" does that; one-sided ones are NIXL and your own',
        )
    if "cpu" not in known[full].devices:
        hint = "NIXL, or one of your own, takes memory of the host"
        raise UsageError(f"{subject}: Ray's {full} takes tensors of {', '.join(known[full].devices)} only", hint=hint)
    if full == NIXL:
        _nixl(subject, transport_manager(full))
    return full


def _nixl(subject: str, manager: Any) -> None:
    try:
        manager.get_nixl_agent()
    except Exception as error:  # NIXL and UCX raise errors of many classes
        hint = "pip install nixl (it fits torch's CUDA, and needs none); UCX_TLS says which networks it may use"
        raise UsageError(f"{subject}: NIXL cannot be used here: {error}", hint=hint) from error


class RdtTransport(WeightTransport):
    """The transport. The keeper holds the references, and Ray frees the buckets when it drops them.

    Args:
        channel: The channel's name.
        tensor_transport: "nixl", or a transport that was registered with Ray in this process.

    Raises:
        UsageError: This process is outside of Ray, or Ray cannot use that transport here.
    """

    name = "rdt"

    def __init__(self, channel: str, tensor_transport: str = "nixl") -> None:
        keeper = StorageClient("weights", channel, "WeightChannel")
        find = getattr(current_worker().calls, "keeper", None)
        if find is None:
            hint = "the transports store and collective serve scripts"
            raise UsageError(f"{keeper.name}: the transport rdt needs a rank in Ray's own process", hint=hint)
        self._ask = RayCarrier(keeper, find).ask
        self._transport = usable(keeper.name, tensor_transport)

    def publish(self, version: int, buckets: Buckets) -> str:  # noqa: ARG002
        """Put a copy of each bucket, and pass the references to the keeper."""
        address = secrets.token_hex(8)
        self._ask(
            "hand", address, [put_by(self._transport, [joined(bucket)]) if any(bucket) else None for bucket in buckets]
        )
        return address

    def receive(self, address: str, sizes: Sequence[int]) -> Sequence[memoryview] | None:  # noqa: ARG002
        """Fetch the buckets from the publisher's process."""
        # From the keeper, which holds them: Ray frees the tensors with the last reference.
        refs: Sequence[Any] | None = None
        with _receives_lock:
            _running_receives[address] += 1
        try:
            refs = self._ask("handed", address)
            return (
                None
                if refs is None
                else [memoryview(b"") if ref is None else bytes_of(ray.get(ref)[0]) for ref in refs]
            )
        finally:
            with _receives_lock:
                _running_receives[address] -= 1
                if not _running_receives[address]:
                    del _running_receives[address]
                    forget(refs or ())


def forget(refs: Sequence[Any]) -> None:
    """Drop Ray's notes on borrowed tensors, which it would keep for the life of this process."""
    forget_borrowed(ref.hex() for ref in refs if ref is not None)
