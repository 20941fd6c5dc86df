"""`dljob run` on openYuanrong's SDK in its local mode: PrimeMaster and hosts in this process, ranks as children."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dljob.api import registry
from dljob.api.handle import JobHandle
from dljob.cli import output
from dljob.cli.rank_output import EVERYTHING, Shown
from dljob.cli.runner import Interrupted, Runner
from dljob.errors import UsageError

if TYPE_CHECKING:
    from dljob.spec.model import DLJobManifest


class YrRunner(Runner):
    """One `dljob run` without a Ray."""

    _can_resume = False

    def __init__(
        self,
        manifest: DLJobManifest,
        code_dir: Path,
        *,
        faults: Path | None = None,
        pretend: tuple[str, ...] = (),
        form: output.DataFormat = "json",
        shown: Shown = EVERYTHING,
        replace: bool = False,
        resume: str | None = None,
    ) -> None:
        from dljob.runtime.backend.yr_local_mode import local

        if faults is not None or pretend or resume is not None:
            raise UsageError(
                "--faults, --pretend and --resume are for a run on Ray", hint="leave out DISTRIBUTED_BACKEND=yr"
            )
        super().__init__(local(manifest), code_dir, form=form, shown=shown, replace=replace)

    def _run_started(self) -> int:
        """Run the job in this process; return the exit code once nothing of it is left."""
        from dljob.runtime.yr import session

        try:
            session.local(self._everything())
            try:
                return self._run_local()
            except Interrupted as interruption:
                return self._stop(interruption)
        finally:
            session.close()

    def _everything(self) -> tuple[tuple[str, int], ...]:
        """Return the resources of all machines of the plan together: the local mode has one node."""
        from dljob.runtime.yr.resources import bundle_of, resources_of

        total: dict[str, int] = {}
        for group in self._plan.node_groups.values():
            for kind, amount in group.resources:
                total[kind] = total.get(kind, 0) + amount * group.replicas
        bundles = (bundle for unit in self._plan.units.values() for bundle in unit.bundles)
        asked = sum(dict(resources_of(bundle_of(bundle.resources))).get("memory", 0) for bundle in bundles)
        # Each bundle requests whole MiB, so that all together may exceed the machines' memory.
        if asked > total.get("memory", 0):
            total["memory"] = asked
        return tuple(sorted(total.items()))

    def _run_local(self) -> int:
        from dljob.runtime.job.launch import launch, new_uid

        uid, name = new_uid(), self._manifest.metadata.name
        me = os.getpid()
        record = self._register(
            registry.RegistryEntry(
                name=name,
                uid=uid,
                dir=os.fspath(registry.folder_of(name, uid)),
                runner=me,
                # PrimeMaster lives in this process: with it the job is over, and others can see that by its pid.
                runner_started=registry.start_of(me),
            )
        )
        output.say(f"job {name} ({uid[:8]}) on openYuanrong's local mode, in this process; folder: {record.dir}")
        launched = launch(self._manifest, job_dir=record.folder, code_dir=self._code_dir, uid=uid)
        handle = self._handle = JobHandle(record, launched)
        with self.screen(handle) as shown, self._shown.beside(shown, handle.dir):
            status = self._watch(handle, shown, ())
        return self.finish(handle, status, {})
