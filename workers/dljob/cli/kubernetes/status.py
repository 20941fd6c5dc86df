"""`dljob status` on a cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import jobs
from dljob.cli import output
from dljob.cli.kubernetes import show
from dljob.cli.kubernetes.place import on
from dljob.cli.where import JobTarget

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]


def status(job: str | None, where: JobTarget, form: output.TableFormat, *, everywhere: bool, watch: bool) -> None:
    """Show all jobs of a namespace or of all, or one job; with `watch`, a row for every change."""

    async def asked(kube: Kube, namespace: str) -> None:
        if job is None:
            await _all(kube, None if everywhere else namespace, form, watch=watch)
        else:
            await _one(kube, await jobs.find(kube, job, namespace), form, watch=watch)

    on(where, asked)


async def _one(kube: Kube, job: Json, form: output.TableFormat, *, watch: bool) -> None:
    if not watch:
        _print(job, form)
        return
    rows = JobRows(form, namespaced=False)
    async with aclosing(jobs.changes(kube, job)) as changed:
        async for now in changed:
            rows.add([now])


def _print(job: Json, form: output.TableFormat) -> None:
    if form != "table":
        output.structured(show.data(job), form)
        return
    output.data("\n".join(show.detail(job, time.time())))


async def _all(kube: Kube, namespace: str | None, form: output.TableFormat, *, watch: bool) -> None:
    found = await jobs.list_all(kube, namespace)
    rows = JobRows(form, namespaced=namespace is None)
    if not watch:
        if found or form != "table":
            rows.whole(found)
        else:
            place = "in any namespace" if namespace is None else f"in namespace {namespace}"
            output.say(f"no jobs {place}")
        return
    from dljob.kube.api import DLJOBS

    rows.add(found)
    # One resourceVersion is one state: the same state may arrive by the list and by the watch.
    known = {one["metadata"]["uid"]: one["metadata"]["resourceVersion"] for one in found}
    # The watch begins with a list of its own: rows that were already printed are skipped by their version.
    async with aclosing(kube.watch(DLJOBS, namespace)) as heard:
        async for kind, one in heard:
            meta = one["metadata"]
            if kind != "DELETED" and known.get(meta["uid"]) != meta["resourceVersion"]:
                rows.add([one])
            known[meta["uid"]] = meta["resourceVersion"]


class JobRows:
    """Rows printed one after the other under one heading; an unchanged row is not repeated."""

    def __init__(self, form: output.TableFormat, *, namespaced: bool) -> None:
        self._form: output.TableFormat = form
        self._namespaced = namespaced
        self._widths: list[int] = []
        self._last: dict[str, show.Row] = {}

    def whole(self, found: Sequence[Json]) -> None:
        """Print all rows together."""
        if self._form == "table":
            output.data("\n".join(output.aligned(show.rows(found, namespaced=self._namespaced))))
        else:
            output.structured([show.data(one) for one in found], self._form)

    def add(self, found: Sequence[Json]) -> None:
        """Print further rows, those that changed."""
        for one in found:
            cells = show.row(one, namespaced=self._namespaced)
            if self._last.get(one["metadata"]["uid"]) == cells:
                continue
            self._last[one["metadata"]["uid"]] = cells
            if self._form != "table":
                output.structured(show.data(one) if self._form == "json" else [show.data(one)], self._form, indent=None)
                continue
            if not self._widths:
                self._begin(found)
            output.data(output.cells(cells, self._widths))

    def _begin(self, found: Sequence[Json]) -> None:
        shown = show.rows(found, namespaced=self._namespaced)
        self._widths = output.widths(shown)
        phase = shown[0].index("PHASE")
        # The first rows fix the widths; leave room for the longest phase that may follow.
        self._widths[phase] = max(self._widths[phase], len("Provisioning"))
        output.data(output.cells(shown[0], self._widths))
