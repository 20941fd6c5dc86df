"""ElasticMaster: the torch store of one role, in a process of its own, so that it survives the death of any rank."""

from __future__ import annotations

from collections.abc import Callable

import ray

from dljob.errors import UsageError
from dljob.plan.role import HostKind
from dljob.runtime.forked_workers import clean_process
from dljob.runtime.forked_workers.clean_process import CleanProcess
from dljob.runtime.process import environment, preload
from dljob.runtime.process.guard import EndCode, end
from dljob.runtime.process.messages import HostSpec, StartOrder, StopOrder
from dljob.runtime.worker import helper, role_store
from dljob.runtime.worker.host import Host


def forks_store(spec: HostSpec) -> Callable[[role_store.Files], CleanProcess | None] | None:
    """Return what forks the store's process from a template with torch, which the role's fork hosts need as well.

    Other hosts import torch in their own workers, and None is returned.
    """
    if spec.role.host is not HostKind.FORK:
        return None
    env = helper.environ_of(environment.of_fork_server(spec.role))
    modules = preload.modules(spec.role, environment.located(spec).job.code_dir)
    return lambda files: clean_process.forked((role_store.__name__, {}), modules, env, files)


class ElasticMaster(Host):
    """A host without ranks; `hello().address` is the address of its TCPStore."""

    def __init__(self, spec: HostSpec) -> None:
        super().__init__(spec)
        self._store: role_store.RoleStore | role_store.OtherProcessStore | None = None
        self._error: UsageError | None = None
        ip = ray.util.get_node_ip_address()
        try:
            self._store = role_store.serve(
                spec.role.name, spec.role.python, spec.job.dir, ip, self._store_ended, fork=forks_store(spec)
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
