"""The samples of a followed folder: shown as they grow, read seldom, and once more at the end."""

from __future__ import annotations

import pytest
from growing_folder import GrowingFolder
from simulated_folder import UID

from dljob.api.local import views
from dljob.report.live import sources
from dljob.report.live.document import LiveDocument
from dljob.report.live.sources import FolderSource
from dljob.runtime.journal.sample_rows import SampleRow
from dljob.runtime.journal.samples import SampleWriter


def test_samples_are_read_seldom_and_at_the_end(growing: GrowingFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(sources.time, "monotonic", lambda: now[0])
    source = FolderSource(growing.path, UID, lambda: views.in_folder(growing.path), lambda seen: [seen.phase])
    document, writer = LiveDocument("d"), SampleWriter(growing.path)
    growing.step(25)
    source.look(document)
    assert document.parts["samples"] is None
    writer.append(SampleRow(10.0, {"steps/t": [1]}))
    now[0] += sources.SAMPLES_S - 1
    source.look(document)
    assert document.parts["samples"] is None
    now[0] += 1
    source.look(document)
    assert document.parts["samples"]["steps"] == {"t": [[1]]}
    writer.append(SampleRow(20.0, {"steps/t": [2]}))
    while growing.left:
        growing.step(1000)
    source.look(document)
    assert source.over
    assert document.parts["samples"]["steps"] == {"t": [[1, 2]]}
