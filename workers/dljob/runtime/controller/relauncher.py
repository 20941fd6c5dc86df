"""Node relaunchers: user classes that have bad machines replaced where no operator does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from dljob.master.state.actions import RelaunchNode
from dljob.runtime.process import extensions

ANSWER_S = 60.0
"""Seconds for a relauncher to accept an order."""


@dataclass(frozen=True, slots=True)
class BadNode:
    """A Ray node that PrimeMaster uses no more, or that is gone."""

    node: str
    """Ray's node id; `ray.nodes()` gives its address, also of a node that is gone."""
    reason: str
    """NodeFrozen, NodeLost, CheckFailed, or the reason of the rule that replaced it: DeviceError, ..."""
    why: str
    """The reason in words."""
    labels: Mapping[str, str]
    """The node's Ray labels, with `dljob.io/node-group` where it has one."""


class NodeRelauncher:
    """Base class of relaunchers, named by `faultTolerance.node.relauncher`, an entry point of `dljob.noderelaunchers`.

    PrimeMaster constructs it without arguments in its own process, when the first node is bad.
    """

    def relaunch(self, node: BadNode) -> None:
        """Order a node's replacement and return within a minute; PrimeMaster notices by itself which nodes join.

        Called in a thread, and again for the same node after a restart of PrimeMaster: the second call must change
        nothing. An exception is reported as the event NodeRelaunchFailed, and the job goes on as it can.
        """
        raise NotImplementedError(f"{type(self).__name__}.relaunch() is to replace node {node.node}")


class Relaunching:
    """The relauncher that a spec names, constructed when it is first needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._own: NodeRelauncher | None = None
        self._turn = asyncio.Lock()

    async def tell(self, action: RelaunchNode) -> str:
        """Order the replacement of a node; return what went wrong, in words, empty if nothing did."""
        bad = BadNode(action.node, action.reason, action.explanation, dict(action.labels))
        try:
            async with self._turn, asyncio.timeout(ANSWER_S):
                await asyncio.to_thread(self._relaunch, bad)
        except TimeoutError:
            return f"the relauncher {self._name!r} did not take the order within {ANSWER_S:g} s"
        except Exception as error:  # noqa: BLE001 - it is somebody else's, and the job goes on
            # PrimeMaster needs none of it otherwise, and is to start fast.
            from dljob.runtime.process.outcome import describe_error

            return f"the relauncher {self._name!r} failed: {describe_error(error, '')}"
        return ""

    def _relaunch(self, bad: BadNode) -> None:
        relauncher = self._own or extensions.load(extensions.RELAUNCHERS, self._name, "the relauncher")()
        self._own = relauncher
        relauncher.relaunch(bad)
