"""The transport `rdt`: Ray Direct Transport carries the buckets from process to process, past the object store.

It uses `ray.put(_tensor_transport=...)` of Ray 2.60, which one-sided transports support: the reader fetches while the
publisher takes no part, so no driver must know both. Two-sided ones (GLOO, NCCL) are refused: they move a tensor only
as an argument between two actors whose handles a third one has. `collective` serves that case.

Workarounds for Ray: it shares memory with the publisher (a copy is put); notes of borrowed tensors are never dropped
(ray-project/ray#57962: `forget`); an actor without the concurrency group `_ray_system` never frees.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from dljob.errors import UsageError
from dljob.ray_private import forget_borrowed, is_one_sided, put_by, tensor_transports, transport_manager
from dljob.runtime.weights.buckets import bytes_of, joined, parted
from dljob.runtime.weights.model import Version
from dljob.runtime.weights.transport import Buckets

WAY = "rdt"
NIXL = "NIXL"

log = logging.getLogger(__package__)

AskActor = Callable[..., Any]
"""Calls a method of the keeper's actor by name, with its arguments."""


def usable(what: str, name: str) -> str:
    """Return Ray's name of a tensor transport.

    Raises:
        UsageError: Ray has none of that name, or it cannot carry a channel; the message says why.
    """
    try:
        importlib.import_module("torch")  # without it Ray does not know its own transports
    except ImportError as error:
        raise UsageError(
            f"{what}: the transport rdt needs torch: {error}", hint="pip install 'dljob[torch]'"
        ) from error
    known, full = tensor_transports(), name.upper()
    if full not in known:
        hint = f"there are: {', '.join(sorted(known))}; ray.experimental.register_tensor_transport adds others"
        raise UsageError(f"{what}: Ray has no tensor transport {name!r}", hint=hint)
    if not is_one_sided(full):
        raise UsageError(
            f"{what}: Ray's {full} is two-sided: it moves tensors between two actors only when a third, which has both "
            "handles, passes one's result to the other, and ray.put refuses it",
            hint='transport="collective" does that; one-sided ones are NIXL and your own',
        )
    if "cpu" not in known[full].devices:
        hint = "NIXL, or one of your own, takes memory of the host"
        raise UsageError(f"{what}: Ray's {full} takes tensors of {', '.join(known[full].devices)} only", hint=hint)
    if full == NIXL:
        _nixl(what, transport_manager(full))
    return full


def _nixl(what: str, manager: Any) -> None:
    try:
        manager.get_nixl_agent()
    except Exception as error:  # NIXL and UCX raise errors of many classes
        hint = "pip install nixl (it fits torch's CUDA, and needs none); UCX_TLS says which networks it may use"
        raise UsageError(f"{what}: NIXL cannot be used here: {error}", hint=hint) from error


class RdtWay:
    """A `transport.BucketTransport`. The keeper holds the references, and Ray frees the buckets when it drops them."""

    def __init__(self, what: str, ask: AskActor, transport: str) -> None:
        self._what = what
        self._ask = ask
        self._transport = usable(what, transport)

    def check(self) -> None:
        """Do nothing: this transport has no lasting error."""

    @property
    def ready(self) -> bool:
        """Always true."""
        return True

    def send(self, version: Version, buckets: Buckets) -> Version:
        """Put a copy of each bucket; return the version marked with this transport, or unchanged without a keeper."""
        refs = [put_by(self._transport, [joined(bucket)]) if _size(bucket) else None for bucket in buckets]
        try:
            self._ask("hand", version.nonce, refs)
        except RayError as error:
            log.warning("%s.publish: version %d goes by the store: %s", self._what, version.version, error)
            return version
        return version.sent(WAY)

    def take(self, version: Version) -> Buckets | None:
        """Fetch the buckets from the publisher's process; None when it or they are gone."""
        refs: Sequence[Any] | None = None
        try:
            # From the keeper, which holds them: Ray frees the tensors with the last reference.
            refs = self._ask("handed", version.nonce)
            return (
                None if refs is None else [_fetched(ref, sizes) for ref, sizes in zip(refs, version.sizes, strict=True)]
            )
        except Exception as error:  # noqa: BLE001 - each tensor transport fails in its own words, and the store has it too
            log.warning("%s.receive: version %d is fetched from the store: %s", self._what, version.version, error)
            return None
        finally:
            forget(refs or ())


def _size(bucket: Sequence[memoryview]) -> int:
    return sum(view.nbytes for view in bucket)


def _fetched(ref: Any, sizes: Sequence[int]) -> list[memoryview]:
    (whole,) = ray.get(ref) if ref is not None else (None,)
    return parted(memoryview(b"") if whole is None else bytes_of(whole).toreadonly(), sizes)


def forget(refs: Sequence[Any]) -> None:
    """Drop Ray's notes on borrowed tensors, which it would keep for the life of this process."""
    forget_borrowed(ref.hex() for ref in refs if ref is not None)
