"""The process of a SubMaster: a host without ranks, as ElasticMaster is."""

from __future__ import annotations

import threading

from dljob.errors import CallError, UsageError
from dljob.master.state.views import Outcome
from dljob.runtime.process import extensions, outcome
from dljob.runtime.process.environment import enter_code_dir
from dljob.runtime.process.job_control import JobControl
from dljob.runtime.process.messages import HostSpec, OutcomeError, StartOrder
from dljob.runtime.rpc.client import RpcClient
from dljob.runtime.worker.host import Host
from dljob.runtime.worker.sub_master import SubMaster

_TRANSIENT_ERRORS = (CallError, ConnectionError, TimeoutError, MemoryError)
"""Errors of a start that may not come again: of a peer, the network or memory."""


class SubMasterHost(Host):
    """A host whose `hello().address` is the SubMaster's.

    What the SubMaster raises is an OutcomeError of `hello` and `start`, with its line.
    """

    def __init__(self, spec: HostSpec) -> None:
        super().__init__(spec)
        self._init_own(spec)

    def _init_own(self, spec: HostSpec) -> None:
        self._lock = threading.Lock()
        self._generation = -1
        self._code_dir = spec.job.code_dir
        self._phase = "import"
        """The part of the SubMaster that runs, for the words of its errors."""
        self._address = ""
        self._sub_master: SubMaster | None = None
        self._failure: Outcome | None = None
        try:
            self._sub_master = self._create(spec)
        except Exception as error:  # noqa: BLE001 - `hello` raises it: Ray tells nobody else why a constructor failed
            is_fatal = not isinstance(error, _TRANSIENT_ERRORS)
            self._failure = self._report_error(error, is_fatal=is_fatal)

    def _report_error(self, error: Exception, *, is_fatal: bool = False) -> Outcome:
        """Return what PrimeMaster is told of an error of the SubMaster. Its traceback goes into this process's log."""
        failure = outcome.from_exception(error, code_dir=self._code_dir, phase=self._phase, fatal=is_fatal)
        print(failure.detail, flush=True)  # noqa: T201 - as that of a rank
        return failure

    def _create(self, spec: HostSpec) -> SubMaster:
        """Return the SubMaster, which serves at `self._address`."""
        role, job = spec.role, spec.job
        enter_code_dir(job.code_dir)
        subject = f"role {role.name}: the SubMaster"
        cls = extensions.load(extensions.SUB_MASTERS, role.sub_master, subject, job.code_dir)
        if not (isinstance(cls, type) and issubclass(cls, SubMaster)):
            hint = "it must be a subclass of dljob.SubMaster"
            raise UsageError(f"{subject} {role.sub_master!r} is {cls!r}", hint=hint)
        self._phase = "__init__"
        sub_master = cls()
        sub_master.role, sub_master.config = role.name, role.config
        caller = f"{role.name}/store"
        sub_master.job = JobControl(RpcClient(job, caller), caller, dict(job.roles))
        self._phase = "setup"
        sub_master.setup()
        self._phase = "address"
        self._address = str(sub_master.address())
        host, _, port = self._address.rpartition(":")
        if not host or not port.isdecimal():
            raise UsageError(f"{cls.__name__}.address() returned {self._address!r}", hint="it must return host:port")
        self._phase = "begin"
        return sub_master

    def address(self) -> str:
        """Return host:port of the SubMaster.

        Raises:
            OutcomeError: It could not be loaded or made, its `setup` or `address` raised, or this is not host:port.
        """
        if self._failure is not None:
            raise OutcomeError(self._failure)
        return self._address

    def start_ranks(self, order: StartOrder) -> None:
        """Call the SubMaster's `begin`, once per generation: its ranks are about to start.

        Raises:
            OutcomeError: What `begin` raised.
        """
        with self._lock:
            if self._sub_master is not None and order.generation > self._generation:
                try:
                    self._sub_master.begin(order.generation, order.world_size)
                except Exception as error:  # noqa: BLE001 - a user's code raises what it wants
                    raise OutcomeError(self._report_error(error)) from None
                self._generation = order.generation
