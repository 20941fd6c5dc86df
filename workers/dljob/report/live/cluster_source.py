"""A job of a cluster that is followed by a copy of its record, which is then read as a folder of this machine is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dljob.api.kubernetes.handle import KubernetesJob
from dljob.api.kubernetes.timeline import EventFeed
from dljob.api.shown_job import Overview
from dljob.report.live.document import LiveDocument
from dljob.report.live.record_copy import RecordCopy
from dljob.report.live.sources import ASK_S, AskedSource, Explain, FolderSource, OlderEvents, SourceSilentError
from dljob.runtime.journal.event_file import EarlierEvents
from dljob.runtime.journal.job_record import SPEC, read_status

BY_CLUSTER = ("phase", "reason", "message", "startTime", "completionTime", "attempt", "restarts")
"""Fields that the DLJob tells better than PrimeMaster, which knows one attempt and may be away."""


class ClusterSource:
    """Follows a job on Kubernetes.

    While there is no record (before the start, of an ended job whose cluster is gone, or of an image that gives none)
    the page is that of `AskedSource`. Each attempt has a record of its own: the document begins anew with it.
    """

    def __init__(
        self, job: KubernetesJob, folder: Path, explain: Explain, pause: Callable[[float], object] = time.sleep
    ) -> None:
        """`folder` is an empty one, for copies."""
        self._job, self._folder, self._explain, self._pause = job, folder, explain, pause
        self._asked = AskedSource(job, explain, pause)
        self._feed = EventFeed(has_master_notes=False)
        self._published: list[dict[str, Any]] = []
        """Events of Kubernetes about the job."""
        self._begun = False
        """Whether the document is of this attempt."""
        self._merged = 0
        """How many of them the document has."""
        self._attempt: int = 0
        self._seen: Overview | None = None
        self._copy: RecordCopy | None = None
        self._inner: FolderSource | None = None

    @property
    def over(self) -> bool:
        """Whether the DLJob says so."""
        return self._inner.over if self._inner else self._asked.over

    def wait(self) -> None:
        """Pause between two questions."""
        self._pause(ASK_S)

    def older(self, asked: OlderEvents) -> EarlierEvents:
        """Search the copy."""
        return (self._inner or self._asked).older(asked)

    def look(self, document: LiveDocument) -> bool:
        """Bring the copy up to date, and read what it has new."""
        silent = self._follow()
        if self._inner is None:
            return self._asked.look(document)
        if not self._begun:
            document.restart()
            self._begun = True
        changed = self._inner.look(document, lambda fresh: self._with_published(document, fresh))
        if silent and not self.over:
            raise SourceSilentError(silent)
        return changed

    def _follow(self) -> str:
        """Ask until the copy has all that the record had a moment ago; return why there is no answer."""
        while True:
            question = self._copy.question() if self._copy else {}
            answer = self._job.record(self._feed, question)
            self._published += answer.events
            if answer.news is None:
                self._show(answer.overview)
                return answer.silent
            if self._copy is None or answer.attempt not in (0, self._attempt):
                self._attempt = answer.attempt
                self._copy = self._begin(answer.attempt)
            elif not self._copy.take(answer.news) or not self._copy.behind():
                break
        self._copy.tidy()
        self._show(answer.overview)
        return ""

    def _begin(self, attempt: int) -> RecordCopy:
        folder = self._folder / f"attempt-{attempt}"
        folder.mkdir(mode=0o700)
        body = self._job.body
        manifest = {key: body.get(key) for key in ("apiVersion", "kind", "spec")}
        (folder / SPEC).write_text(json.dumps({**manifest, "metadata": {"name": self._job.name}}))
        self._inner = FolderSource(folder, self._job.uid, self._status, self._explain)
        self._begun, self._merged = False, 0
        return RecordCopy(folder)

    def _show(self, overview: Overview) -> None:
        if self._inner and self._seen and overview.status != self._seen.status:
            self._inner.refresh()
        self._seen = overview

    def _status(self) -> Overview:
        overview = self._seen
        assert overview is not None  # noqa: S101 - it is asked after a look alone
        cluster_fields = {key: overview.status[key] for key in BY_CLUSTER if overview.status.get(key) is not None}
        filed_status = read_status(self._folder / f"attempt-{self._attempt}")
        return replace(
            overview,
            status={**overview.status, **filed_status, **cluster_fields, "name": self._job.name, "uid": self._job.uid},
        )

    def _with_published(self, document: LiveDocument, fresh: list[Any]) -> list[Any]:
        """Merge Events of Kubernetes by time, but not those by which the operator repeats PrimeMaster's own."""
        known_notes = [(note.get("reason"), str(note.get("message") or "")) for note in [*document.events, *fresh]]
        new = [
            note_published
            for note_published in self._published[self._merged :]
            if not any(
                note_published["reason"] == reason and message in note_published["message"]
                for reason, message in known_notes
            )
        ]
        self._merged = len(self._published)
        return sorted([*fresh, *new], key=lambda note: note.get("time") or 0.0)
