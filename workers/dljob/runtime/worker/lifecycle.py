"""The life of a rank in a thread host: import, construct, check, set up, run, shut down; and how each step can fail."""

from __future__ import annotations

import inspect
import re
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dljob.calls.mesh import resize_misfit
from dljob.errors import CallError, PeerLostError
from dljob.master.state.views import Outcome, Reason
from dljob.plan.role import RolePlan
from dljob.runtime.collectives.table import register_for_rank
from dljob.runtime.process import outcome
from dljob.runtime.process.entrypoint import EntrypointError, resolve, takes_context
from dljob.runtime.process.error_origin import is_job_ending
from dljob.runtime.process.loop import settle
from dljob.runtime.process.thread_interrupt import ThreadInterrupt, ThreadInterrupted
from dljob.runtime.process.worker_context import WorkerContext
from dljob.runtime.rpc.server import declared_mesh
from dljob.runtime.worker.worker import Worker

FATAL_PHASES = frozenset({"import", "__init__", "setup"})
"""Phases whose errors would occur again after a restart: the job ends at once with this cause."""

# Words in a RuntimeError by which torch reports that a peer or the network failed, not this rank's code.
_COLLECTIVE = re.compile(r"connection|peer|timed? ?out|nccl|gloo|hccl|store", re.IGNORECASE)

NO_HANDLER = "only works in main thread"
"""Python's words where a handler of a signal is installed in another thread, by `signal` or by `asyncio`."""
INSTEAD = (
    "a class or function runs in a thread beside Ray, where no handler can be installed: look at "
    "current_worker().stopping instead of SIGTERM, or run a script (entrypoint.module), which has the main thread"
)


class Lifecycle:
    """One rank's user code, from import to end, in the thread that calls `live`.

    `join` forms the role's process group, after the import and before `__init__`. `ready` gets the object once `setup`
    is done. `leave` is called after `run` returned well. With `kept`, the object of an earlier incarnation in this
    process, nothing is constructed or set up: `on_restart` and `run` are called again.
    """

    def __init__(
        self,
        context: WorkerContext,
        role: RolePlan,
        code_dir: str,
        *,
        ready: Callable[[Any], None],
        join: Callable[[], None] | None = None,
        leave: Callable[[], None] | None = None,
        recall: ThreadInterrupt | None = None,
        kept_object: Any = None,
    ) -> None:
        self._context = context
        self._role = role
        self._code_dir = code_dir
        self._ready = ready
        self._join = join
        self._leave = leave
        self._recall = recall or ThreadInterrupt()
        self._kept = kept_object
        self._phase = "import"
        self._object: Any = None
        self._ending = threading.Lock()
        self._shut = False
        self._shutdown_error: Outcome | None = None
        self._settled = False
        """Whether the object is set up; True for a function, which needs no setup."""

    def live(self) -> Outcome:
        """Run all phases; an Outcome whatever happens, except for ThreadInterrupted, which passes."""
        try:
            value = self._run_phases()
            self.shutdown()
            self._phase = "run"
            result = self._result(value)
            # Only after a good end: after a bad one peers may be gone, and the group can only be broken off.
            if self._leave is not None:
                self._leave()
        except EntrypointError as error:
            return self._unusable(error)
        except ThreadInterrupted:  # no failure of user code: the host takes it as leaving
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt are ends like others
            # Once leaving is ordered, errors come from broken collectives, not from this rank.
            if self._recall.ordered:
                raise ThreadInterrupted from None
            return self._raised(error)
        serves = isinstance(self._object, Worker) and self._object.serves_after_run
        ended = Outcome(ok=True, code=0, step=None, result=result, serves=serves)
        if self._shutdown_error is None:
            return ended
        error = self._shutdown_error
        return replace(ended, error_type=error.error_type, frame=error.frame, message=error.message)

    @property
    def left_over(self) -> tuple[bool, Any]:
        """Whether a next incarnation may run in this process, and the object that it goes on with, if any.

        False when the object is half set up, or shut down: what it left behind is unknown.
        """
        # Before `__init__` nothing of the user's exists that a next incarnation could find half made.
        if self._phase in ("import", "process group") or self._settled:
            return not self._shut, self._kept if self._object is None else self._object
        return False, None

    @property
    def in_function(self) -> bool:
        """Whether a function of the user's runs: it has no `shutdown` that could end it."""
        return self._settled and self._object is None and self._kept is None

    def shutdown(self) -> None:
        """Call the worker's `shutdown` hook, only the first time. An exception is printed, and told with the end."""
        with self._ending:
            if self._shut:
                return
            self._shut = True
        # A restart in process that failed before it took the kept object over still has to shut it down.
        owner = self.left_over[1] if self._object is None else self._object
        if isinstance(owner, Worker):
            try:
                settle(owner.shutdown())
            except Exception as error:  # noqa: BLE001 - its traceback is in the log, and the rank ends all the same
                traceback.print_exc()
                self._shutdown_error = outcome.from_exception(error, code_dir=self._code_dir, phase="shutdown")

    def _run_phases(self) -> Any:
        """Run the phases in order, and return the value of `run`.

        `_phase` names the present one; an error's outcome, and whether it is fatal, depend on it:
        import: load the user's module; process group: join the role's torch group; __init__, self_check, setup: build
        the object, in a first start only; on_restart: tell it why it restarted; run: its work.
        """
        path = self._role.entrypoint[1]
        # An interrupt during an import could leave modules half initialised in a process that is to go on.
        with self._recall.held_back():
            register_for_rank(self._role.name)
            target = resolve(path)
        self._check_leave()
        with_context = takes_context(target, path)
        run = self._check(target, path)
        # After the import, so that a bad one is reported without waiting for the group; before `__init__`, so that
        # constructors and `setup` can use collectives.
        if self._join is not None:
            self._phase = "process group"
            self._join()
        self._check_leave()
        self._phase = "__init__" if inspect.isclass(target) else "run"
        arguments = (self._context,) if with_context else ()
        if not inspect.isclass(target):
            self._settled = True
            self._ready(None)
            return settle(target(*arguments))
        if self._kept is None:
            self._object = target(*arguments)
            self._set_up()
        else:
            self._object = self._kept
        self._settled = True
        self._restarted()
        self._check_mesh()
        # Calls are served only from here on: user methods may rely on what `setup` and `on_restart` made.
        self._ready(self._object)
        self._phase = "run"
        if run:
            return settle(self._object.run())
        # A role that only serves calls: it ends when it is told to.
        self._context.stopping.wait()
        return None

    def _set_up(self) -> None:
        if not isinstance(self._object, Worker):
            return
        self._phase = "self_check"
        if settle(self._object.self_check()) is False:
            raise SelfCheckError(f"{self._context.name}: self_check() returned False")
        self._phase = "setup"
        settle(self._object.setup())

    def _restarted(self) -> None:
        if isinstance(self._object, Worker) and self._context.restart_reason:
            self._phase = "on_restart"
            settle(self._object.on_restart(self._context.restart_reason))

    def _check_leave(self) -> None:
        """Raise ThreadInterrupted if leaving was ordered: the order may have come too early to break off anything."""
        if self._recall.ordered:
            raise ThreadInterrupted

    def _check(self, target: Callable[..., Any], path: str) -> bool:
        """Whether a class has a `run` to call.

        Raises:
            EntrypointError: `run` takes arguments, or a driver has no `run` of its own and would never end.
        """
        if not inspect.isclass(target):
            return True
        run = getattr(target, "run", None)
        has_own_run = callable(run) and run is not Worker.run
        if self._role.driver and not has_own_run:
            raise EntrypointError(
                "TypeError",
                f"{path} has no run(), and role {self._role.name} is a driver: the job would never end; "
                "write run(), or set driver: false on a role that only serves calls",
            )
        if has_own_run and run is not None:
            parameters = list(inspect.signature(run).parameters.values())[1:]
            if any(p.default is p.empty and p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD} for p in parameters):
                raise EntrypointError(
                    "TypeError", f"{path}.run{inspect.signature(run)}: run() is called without arguments"
                )
        return callable(run)

    def _check_mesh(self) -> None:
        """Refuse a mesh that some size of the role would not fit: its callers would find out at a change of size."""
        role = self._role
        misfit = resize_misfit(declared_mesh(self._object), role.group_size, role.name) if role.fleet else ""
        if misfit:
            raise EntrypointError("MeshError", misfit)

    def _result(self, value: Any) -> str:
        """Return the result as JSON. Only rank 0 of a driver must return JSON; other ranks only get a warning."""
        if value is None:
            return ""
        try:
            return outcome.encode_result(value)
        except outcome.ResultError as error:
            if self._role.driver and self._context.rank == 0:
                raise
            self._context.log.warning("%s; the value was dropped", error)
            return ""

    def _unusable(self, error: EntrypointError) -> Outcome:
        importing = error.kind == "ImportError"
        return Outcome(
            ok=False,
            reason=Reason.IMPORT_ERROR if importing else Reason.USER_ERROR,
            code=1,
            error_type=error.kind,
            message=f"role {self._role.name}: {error}",
            fatal=True,
        )

    def _raised(self, error: BaseException) -> Outcome:
        if is_job_ending(error):
            return Outcome(ok=True, code=0, message="its call found that the job is ending")
        fatal = isinstance(error, outcome.ResultError) or (
            self._phase in FATAL_PHASES and not self._from_outside(error) and not isinstance(error, SystemExit)
        )
        ended = outcome.from_exception(error, code_dir=self._code_dir, phase=self._phase, fatal=fatal)
        # Once this rank is asked to stop, its callees are, too: that it loses them is no news.
        loses_peers = bool(self._context.stopping.reason) and isinstance(error, PeerLostError)
        if ended.detail and not loses_peers:
            print(ended.detail, flush=True)  # noqa: T201 - the user's traceback belongs into the rank's log
        if isinstance(error, (ValueError, RuntimeError)) and NO_HANDLER in ended.message:
            ended = replace(ended, message=f"{ended.message}; {INSTEAD}")
        # The process or its machine is at fault, not a line of the user's code.
        if isinstance(error, SelfCheckError):
            return replace(ended, reason=Reason.UNKNOWN, frame="", detail="")
        return ended

    def _from_outside(self, error: BaseException) -> bool:
        """Whether an error of setup may not come again: it comes from a peer, the network or memory."""
        if isinstance(error, (CallError, ConnectionError, TimeoutError, MemoryError)):
            return True
        if any(kind.__module__.startswith("torch.distributed") for kind in type(error).__mro__):
            return True
        collective = self._join is not None and isinstance(error, RuntimeError)
        return collective and bool(_COLLECTIVE.search(str(error)))


class SelfCheckError(Exception):
    """A worker's `self_check` returned False: this process, or its machine, is not fit."""
