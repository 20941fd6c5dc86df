"""The connection of this process to openYuanrong, one at a time: the SDK's local mode, or a cluster at an address."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dljob.errors import UnreachableError, UsageError
from dljob.plan.model import GRAIN, Resources
from dljob.runtime.backend.interface import KeyValue
from dljob.runtime.yr.resources import bundle_of

ADDRESS = "YR_SERVER_ADDRESS"


@dataclass(frozen=True, slots=True)
class Session:
    """A connection of this process."""

    yr: Any
    """The SDK's module."""
    local: bool
    kv: KeyValue
    own_node: Callable[[], str]
    resources: Callable[[], list[dict[str, Any]]]
    """Returns the rows of `yr.resources()`."""


_lock = threading.Lock()
_session: Session | None = None


def local(total: Resources | None = None) -> Session:
    """Return the local mode of this process, started on first use.

    Args:
        total: Resources of its one node, if this call starts it; by default this machine's CPUs.

    Raises:
        UsageError: The process is connected to a cluster.
        UnreachableError: The SDK is not installed.
    """
    _sdk()
    from dljob.runtime.yr.keys import LocalKeyValue
    from dljob.runtime.yr.local import LocalNode, install

    global _session  # noqa: PLW0603 - the SDK, too, has one for each process
    with _lock:
        if _session is None:
            node = LocalNode("local", bundle_of(total or (("CPU", (os.cpu_count() or 1) * GRAIN),)))
            sdk, system = _sdk(), install([node])
            _session = Session(sdk, True, LocalKeyValue(), system.get_node_id, system.resources)
        if not _session.local:
            raise UsageError(
                "this process is connected to an openYuanrong cluster, and cannot use the SDK's local mode as well"
            )
        return _session


def close() -> None:
    """End the local mode with all in it, or leave the cluster."""
    global _session  # noqa: PLW0603
    with _lock:
        if _session is not None:
            _session.yr.finalize()
            _session = None


def cluster() -> Session:
    """Return the connection to the cluster at YR_SERVER_ADDRESS, joined on first use.

    Raises:
        UsageError: No address is given, or the process has a local mode.
        UnreachableError: Nothing answers there.
    """
    sdk = _sdk()
    from dljob.runtime.yr.keys import connected

    global _session  # noqa: PLW0603
    with _lock:
        if _session is not None and _session.local:
            raise UsageError("this process has openYuanrong's local mode, and cannot join a cluster as well")
        if _session is None:
            if not os.environ.get(ADDRESS):
                raise UsageError(
                    f"the backend yr has no cluster here: {ADDRESS} is not set",
                    hint="on one machine: `dljob run FILE` uses the SDK's local mode; see docs/howto/yuanrong.md",
                )
            _session = _joined(sdk, connected())
        return _session


def _sdk() -> Any:
    """Import the SDK. Raises UnreachableError when it, or the datasystem's client, is not installed."""
    try:
        with _without_torch():
            importlib.import_module("yr.datasystem")
            sdk: Any = importlib.import_module("yr")
            sdk.init  # noqa: B018 - the SDK creates its names on access, which may fail
    except (ImportError, AttributeError) as error:
        raise UnreachableError(
            f"the backend yr cannot be loaded: {error}", hint="pip install 'dljob[yr]', without openyuanrong beside it"
        ) from error
    return sdk


@contextmanager
def _without_torch() -> Generator[None]:
    """Hide torch while the SDK is imported, which saves 3 of 3.5 s.

    The SDK loads it, where it is installed, for tensors on NPUs, which no call of dljob passes.
    """
    loaded = "torch" in sys.modules
    if not loaded:
        sys.modules["torch"] = None  # pyright: ignore[reportArgumentType] - makes Python raise ImportError
    try:
        yield
    finally:
        # Taken out again: user code may import torch later.
        if not loaded:
            del sys.modules["torch"]


def _joined(sdk: Any, kv: KeyValue) -> Session:
    from yr.runtime_holder import global_runtime

    try:
        sdk.init(sdk.Config())
    except (RuntimeError, ValueError, TypeError) as error:
        raise UnreachableError(
            f"no openYuanrong answers at {os.environ[ADDRESS]}: {error}", hint=f"{ADDRESS} says where"
        ) from error
    return Session(sdk, False, kv, lambda: str(global_runtime.get_runtime().get_node_id()), sdk.resources)
