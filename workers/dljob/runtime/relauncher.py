"""Who replaces machines for a job, where no operator does: a class of a package of the user's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from dljob.master.actions import RelaunchNode
from dljob.runtime import extensions

ANSWER_S = 60.0
"""How long it may take to take an order."""


@dataclass(frozen=True, slots=True)
class BadNode:
    """A Ray node that PrimeMaster has left, or that is gone."""

    node: str
    """Ray's id of it; `ray.nodes()` knows its address, also of one that is gone."""
    reason: str
    """NodeFrozen, NodeLost, CheckFailed, or the reason of the rule that replaced it: DeviceError, ..."""
    why: str
    """In words."""
    labels: Mapping[str, str]
    """Ray's labels of it, `dljob.io/node-group` where it has one."""


class NodeRelauncher:
    """Has bad nodes replaced: named by `faultTolerance.node.relauncher`, found in `dljob.noderelaunchers`.

    Constructed without arguments, in PrimeMaster's process, when the first node is bad.
    """

    def relaunch(self, node: BadNode) -> None:
        """Order a node's replacement and return, within a minute; PrimeMaster sees for itself what joins.

        Called in a thread. It may be told of the same node again, after a restart of PrimeMaster: the second time
        changes nothing. An exception is told as the event NodeRelaunchFailed; the job goes on as it can.
        """
        raise NotImplementedError(f"{type(self).__name__}.relaunch() is to replace node {node.node}")


class Relaunching:
    """The relauncher that a spec names, made when it is needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._own: NodeRelauncher | None = None
        self._turn = asyncio.Lock()

    async def tell(self, action: RelaunchNode) -> str:
        """Tell it of a node; what went wrong, in words, else nothing."""
        bad = BadNode(action.node, action.reason, action.why, dict(action.labels))
        try:
            async with self._turn, asyncio.timeout(ANSWER_S):
                await asyncio.to_thread(self._told, bad)
        except TimeoutError:
            return f"the relauncher {self._name!r} did not take the order within {ANSWER_S:g} s"
        except Exception as error:  # noqa: BLE001 - it is somebody else's, and the job goes on
            return f"the relauncher {self._name!r} failed: {type(error).__name__}: {error}"
        return ""

    def _told(self, bad: BadNode) -> None:
        own = self._own or extensions.load(extensions.RELAUNCHERS, self._name, "the relauncher")()
        self._own = own
        own.relaunch(bad)
