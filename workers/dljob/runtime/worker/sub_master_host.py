"""The process of a SubMaster: a host without ranks, as ElasticMaster is."""

from __future__ import annotations

import threading

from dljob.errors import UsageError
from dljob.runtime.process import extensions
from dljob.runtime.process.environment import enter_code_dir
from dljob.runtime.process.job_control import JobControl
from dljob.runtime.process.messages import HostSpec, StartOrder
from dljob.runtime.rpc.client import RpcClient
from dljob.runtime.worker.host import Host
from dljob.runtime.worker.sub_master import SubMaster


class SubMasterHost(Host):
    """A host whose `hello().address` is the SubMaster's; exceptions of the SubMaster surface in `hello` and `start`."""

    def __init__(self, spec: HostSpec) -> None:
        super().__init__(spec)
        self._init_own(spec)

    def _init_own(self, spec: HostSpec) -> None:
        self._lock = threading.Lock()
        self._generation = -1
        self._own: SubMaster | None = None
        self._error: Exception | None = None
        try:
            self._own = self._create(spec)
        except Exception as error:  # noqa: BLE001 - `hello` raises it: Ray tells nobody else why a constructor failed
            self._error = error

    def _create(self, spec: HostSpec) -> SubMaster:
        role, job = spec.role, spec.job
        enter_code_dir(job.code_dir)
        whose = f"role {role.name}: the SubMaster"
        cls = extensions.load(extensions.SUB_MASTERS, role.sub_master, whose, job.code_dir)
        if not (isinstance(cls, type) and issubclass(cls, SubMaster)):
            raise UsageError(f"{whose} {role.sub_master!r} is {cls!r}", hint="it must be a subclass of dljob.SubMaster")
        own = cls()
        own.role, own.config = role.name, role.config
        me = f"{role.name}/store"
        own.job = JobControl(RpcClient(job, me), me, dict(job.roles))
        own.setup()
        return own

    def address(self) -> str:
        """Return host:port of the SubMaster.

        Raises:
            UsageError: Its `address()` is not host:port.
            Exception: What its constructor or `setup` raised.
        """
        if self._own is None:
            raise self._error or UsageError("the SubMaster has not been made")
        said = self._own.address()
        host, _, port = str(said).rpartition(":")
        if not host or not port.isdecimal():
            raise UsageError(f"{type(self._own).__name__}.address() returned {said!r}", hint="it must return host:port")
        return str(said)

    def start_ranks(self, order: StartOrder) -> None:
        """Call the SubMaster's `begin`, once per generation: its ranks are about to start."""
        with self._lock:
            if self._own is not None and order.generation > self._generation:
                self._own.begin(order.generation, order.world_size)
                self._generation = order.generation
