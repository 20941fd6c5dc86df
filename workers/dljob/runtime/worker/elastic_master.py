"""ElasticMaster: the torch store of one role, in a process of its own, so that it survives the death of any rank."""

from __future__ import annotations

import ray

from dljob.errors import UsageError
from dljob.runtime.process.guard import EndCode, end
from dljob.runtime.process.messages import HostSpec, StartOrder, StopOrder
from dljob.runtime.worker import role_store
from dljob.runtime.worker.host import Host


class ElasticMaster(Host):
    """A host without ranks; `hello().address` is the address of its TCPStore."""

    def __init__(self, spec: HostSpec) -> None:
        super().__init__(spec)
        self._store: role_store.RoleStore | role_store.OtherPythonStore | None = None
        self._error: UsageError | None = None
        role = spec.role
        try:
            self._store = role_store.serve(
                role.name, role.python, spec.job.dir, ray.util.get_node_ip_address(), self._store_ended
            )
        except UsageError as error:  # `address` raises it: Ray tells nobody else why a constructor failed
            self._error = error

    @staticmethod
    def _store_ended(code: int) -> None:
        end(EndCode.HELPER_GONE, f"the process of its store ended with code {code}")

    def address(self) -> str:
        """Return host:port of the store, the same for all generations.

        Raises:
            UsageError: The store did not start.
        """
        if self._store is None:
            raise self._error or UsageError("the store has not been made")
        return self._store.address

    def start_ranks(self, order: StartOrder) -> None:
        """Do nothing: a store has no ranks. Its first rank of a new generation has it emptied, see `RoleStore`."""

    def stop_ranks(self, order: StopOrder) -> None:
        """Do nothing: a store has no ranks."""
