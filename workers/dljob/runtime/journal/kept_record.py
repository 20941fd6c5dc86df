"""A job's record on the volume of its checkpoints, where it outlives the cluster: the files that a job's folder has.

    <checkpoint path>/<job>-<uid8>/       status.json, events.jsonl, samples/, journal/, and spec.json without values
    .../earlier/attempt-1/                the same of earlier attempts
    .../earlier/attempt-2.1/              of this one, up to where its record could not be continued
    .../logs/attempt-1/                   whole logs, which the nodes' agents bring (`dljob.logs.archive`)

So `dljob report`, `why` and `replay` take that folder like any other. PrimeMaster copies what is new twice a minute,
more often at first, and at the end, in a thread: a volume that hangs or is full costs no job. One that takes over on
another node, where the job's folder is empty, first brings events and samples back from there.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from dljob.linux.plain_files import open_plain, read_plain
from dljob.logs import archive
from dljob.runtime.journal.job_record import SPEC
from dljob.runtime.journal.samples import FOLDER as SAMPLES
from dljob.runtime.journal.timeline import EVENTS, STATUS, Timeline, last_seq, write_atomically
from dljob.runtime.process.messages import JobInfo
from dljob.spec.redaction import without_values
from dljob.tasks import ErrorLog

log = logging.getLogger(__package__)

KEEP_S = 30.0
"""Seconds between two copies, as for the logs."""
FIRST_S = 5.0
"""Seconds until the first copy; each pause is twice the one before, up to KEEP_S: an attempt that soon ends with its
head leaves how it began."""
END_S = 10.0
"""Most seconds that the end of a job waits for its last copy."""
RESTORE_S = 10.0
"""Most seconds that a new master waits for what an earlier one has recorded."""
END_BYTES = 4096
"""Bytes at the end of the events by which a record is known again."""
JOURNAL, CLOSED, EARLIER, ATTEMPT = "journal", "journal/closed", "earlier", "attempt"
STAGED = ".from-volume"
"""Folder in a job's folder for what is being brought back from the volume."""
_FOLDERS = (SAMPLES, JOURNAL, CLOSED)


class KeptRecord:
    """Copies one master's record; does nothing without a checkpoint volume."""

    def __init__(self, info: JobInfo) -> None:
        volume = os.environ.get(archive.CHECKPOINT)
        self._folder, self._attempt = Path(info.dir), info.attempt
        self._place = archive.root(volume, info.name, info.uid) if volume else None
        self._errors = ErrorLog("the copy of the job's record to the checkpoint volume", log)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dljob-record")

    async def restore(self, timeline: Timeline, *, begun: bool) -> None:
        """Bring what an earlier master of a job that has begun recorded on another node into the job's folder here."""
        if self._place is None or not begun:
            return
        staged = asyncio.get_running_loop().run_in_executor(self._thread, self._stage, self._place)
        await asyncio.wait([staged], timeout=RESTORE_S)
        if not staged.done():  # what comes later is left: this master writes its own files by then
            log.warning("%s does not answer: earlier events and samples stay on the volume alone", self._place)
        elif staged.result():
            await asyncio.to_thread(self._adopt)
            await asyncio.to_thread(timeline.read_again)

    async def run(self) -> None:
        """Copy again and again; returns at once without a volume."""
        pause = FIRST_S
        while self._place is not None:
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - spreads the writes of all jobs
            pause = min(2 * pause, KEEP_S)
            await asyncio.get_running_loop().run_in_executor(self._thread, self._keep, self._place)

    async def end(self) -> None:
        """Copy the last state; gives up on a volume that hangs."""
        if self._place is not None:
            last = asyncio.get_running_loop().run_in_executor(self._thread, self._keep, self._place)
            await asyncio.wait([last], timeout=END_S)

    def close(self) -> None:
        """Let go of the thread, without waiting for it."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _stage(self, place: Path) -> bool:
        try:
            return stage(place, self._folder, self._attempt)
        except OSError as error:
            log.warning("earlier events and samples stay on the volume alone, in %s: %s", place, error)
            return False

    def _adopt(self) -> None:
        try:
            adopt(self._folder)
        except OSError as error:
            log.warning("earlier events and samples stay on the volume alone, in %s: %s", self._place, error)

    def _keep(self, place: Path) -> None:
        try:
            keep(self._folder, place, self._attempt)
            self._errors.worked()
        except (OSError, ValueError) as error:
            self._errors.failed(error)


def keep(folder: Path, place: Path, attempt: int) -> None:
    """Bring what is new in a job's folder to its place on a volume; nothing where that is ahead.

    Raises:
        OSError: The volume cannot be written, or has too little room.
        ValueError: The spec in the folder is damaged.
    """
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept_attempt = _kept_attempt(place)
    if kept_attempt > attempt or (kept_attempt == attempt and is_ahead(place, folder)):
        return  # a later master goes on with it elsewhere, and this one will find itself fenced
    _put_earlier_away(folder, place, attempt)
    if not (place / SPEC).exists() and (folder / SPEC).exists():
        write_atomically(place / SPEC, shown_spec(read_plain(folder / SPEC).decode("utf-8")))
    _follow(folder / EVENTS, place / EVENTS)
    for name in _FOLDERS:
        _mirror(folder / name, place / name)
    with suppress(FileNotFoundError):  # the master has not written one yet
        write_atomically(place / STATUS, read_plain(folder / STATUS).decode("utf-8"))


def shown_spec(text: str) -> str:
    """Return a manifest without values of its spec, and without annotations, where kubectl repeats the whole of it."""
    manifest: dict[str, Any] = json.loads(text)
    metadata = {key: value for key, value in manifest.get("metadata", {}).items() if key != "annotations"}
    return json.dumps({**manifest, "metadata": metadata, "spec": without_values(manifest["spec"])})


def stage(place: Path, folder: Path, attempt: int) -> bool:
    """Copy events and samples from a job's place on a volume beside a folder's own; return whether they are ahead."""
    if _kept_attempt(place) != attempt or not is_ahead(place, folder):
        return False
    staged = folder / STAGED
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(mode=0o700)
    shutil.copyfile(place / EVENTS, staged / EVENTS)
    if (place / SAMPLES).is_dir():
        shutil.copytree(place / SAMPLES, staged / SAMPLES)
    return True


def adopt(folder: Path) -> None:
    """Put what `stage` has copied in the place of a folder's own, which is an earlier state of it, if anything."""
    staged = folder / STAGED
    if (staged / SAMPLES).is_dir():
        shutil.rmtree(folder / SAMPLES, ignore_errors=True)
        (staged / SAMPLES).rename(folder / SAMPLES)
    # Last: by the events the next master would see that all is here.
    (staged / EVENTS).replace(folder / EVENTS)
    staged.rmdir()


def is_ahead(record: Path, other_record: Path) -> bool:
    """Return whether a record has later events than another one: their numbers are those of the journal."""
    return last_seq(record / EVENTS) > last_seq(other_record / EVENTS)


def _kept_attempt(place: Path) -> int:
    """Return the attempt whose record lies on a volume; 0: there is none."""
    with suppress(OSError, ValueError):
        return int(read_plain(place / ATTEMPT))
    return 0


def _put_earlier_away(folder: Path, place: Path, attempt: int) -> None:
    """Move a record aside that the folder does not continue.

    Each attempt has a folder, a journal and numbers of its own. Within one, a master on another node may have begun
    with an empty folder, as the volume did not answer it; the spec is the same then, and that node may have none.
    """
    before = _kept_attempt(place)
    is_other_attempt = before < attempt
    if before and (is_other_attempt or not _begins_with(folder / EVENTS, place / EVENTS)):
        number = 0 if is_other_attempt else 1
        while (aside := place / EARLIER / f"attempt-{before}{f'.{number}' if number else ''}").exists():
            number += 1
        aside.mkdir(mode=0o700, parents=True)
        for name in (SAMPLES, JOURNAL, EVENTS, STATUS, *([SPEC] if is_other_attempt else [])):
            with suppress(FileNotFoundError):
                (place / name).rename(aside / name)
    write_atomically(place / ATTEMPT, str(attempt))


def _begins_with(file: Path, other_file: Path) -> bool:
    """Return whether a file has the end of another one at the same offset; a missing file is empty."""
    size = other_file.stat().st_size if other_file.exists() else 0
    begin = max(0, size - END_BYTES)
    return _read(file, begin, size) == _read(other_file, begin, size)


def _read(file: Path, begin: int, end: int) -> bytes:
    with suppress(FileNotFoundError), open_plain(file) as opened:
        opened.seek(begin)
        return opened.read(end - begin)
    return b""


def _mirror(source: Path, target: Path) -> None:
    """Make the files of a folder the same as another's; its folders are left alone."""
    source_names = _names(source)
    if not source_names:
        return
    target.mkdir(mode=0o700, exist_ok=True)
    for name in sorted(source_names):
        _follow(source / name, target / name)
    # Last: what a merge or an archive replaced goes only once the copy has its successor.
    for name in _names(target) - source_names:
        (target / name).unlink(missing_ok=True)


def _names(folder: Path) -> set[str]:
    with suppress(OSError):
        return {path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")}
    return set()


def _follow(source: Path, target: Path) -> None:
    """Append the new bytes of a file that only grows; one that became shorter is another one, and is copied whole."""
    # A file that is compressed or merged meanwhile: the next copy has its successor.
    with suppress(FileNotFoundError), open_plain(source) as old:
        size = os.fstat(old.fileno()).st_size
        have = target.stat().st_size if target.exists() else 0
        if have == size:
            return
        archive.check_room(target.parent, size)
        old.seek(have if have < size else 0)
        with os.fdopen(os.open(target, _flags(grows=have < size), 0o600), "wb") as new:
            shutil.copyfileobj(old, new)


def _flags(*, grows: bool) -> int:
    return os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if grows else os.O_TRUNC)
