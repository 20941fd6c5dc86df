"""The book: the record of which checkpoints exist and what each run restores. It is PrimeMaster's journal.

The files repeat it, later: a manifest is written when the journal has the commit, a decision's file when it is made.
The next attempt of the job, which has another journal, reads the files.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dljob.errors import CheckpointError
from dljob.master.state.checkpoint_ids import CheckpointId, RestoreDecision, fence
from dljob.runtime.checkpoint.files import Folder
from dljob.runtime.checkpoint.model import CheckpointLocation

Ask = Callable[[Mapping[str, Any]], "dict[str, Any] | None"]
"""Asks PrimeMaster; None means that no PrimeMaster will answer any more."""


TEXTS, TEXT = 8, 400
"""Damaged checkpoints that are reported to PrimeMaster, and characters of each message: its journal keeps them."""


class Book(Protocol):
    """The questions that a saver asks about committed checkpoints, decisions and data."""

    def commit(self, place: CheckpointLocation, mark: CheckpointId) -> str | None:
        """Return why a checkpoint on disk does not count; empty: it counts; None: PrimeMaster cannot answer."""
        ...

    def turn(self, place: CheckpointLocation, folder: Folder) -> RestoreDecision | None:
        """Return the decision for this run; None if the caller is to decide. Waits while another saver decides."""
        ...

    def choices(self, place: CheckpointLocation) -> tuple[CheckpointId, ...] | None:
        """Return the only checkpoints that this run may restore, as of the last `turn`; None: any."""
        ...

    def needed(self, place: CheckpointLocation) -> tuple[CheckpointId, ...]:
        """Return the checkpoints that must stay on disk beside the newest ones, as of the last `commit`."""
        ...

    def decide(
        self, place: CheckpointLocation, folder: Folder, chosen: CheckpointId | None, damaged: Sequence[str] = ()
    ) -> RestoreDecision:
        """Record a decision for this run, and return the one that counts: the first.

        `damaged`: skipped checkpoints and why, for the timeline.
        """
        ...

    def not_saved(self, place: CheckpointLocation, mark: CheckpointId, reason: str) -> None:
        """Report that the disk does not take a rank's checkpoint. Does not wait for anybody."""
        ...

    def shards(self, question: Mapping[str, Any]) -> dict[str, Any] | None:
        """Send a rank's reports and requests for a data set (`dljob.runtime.data.shards`).

        None if PrimeMaster cannot answer.
        """
        ...


class FileBook:
    """A book without a PrimeMaster: the files alone."""

    def commit(self, place: CheckpointLocation, mark: CheckpointId) -> str | None:
        """Return why the decisions in the folder fence the checkpoint, else empty."""
        return fence(mark, Folder.of(place).decisions())

    def turn(self, place: CheckpointLocation, folder: Folder) -> RestoreDecision | None:
        """Return the decision in the folder, if there is one."""
        return next((decision for decision in folder.decisions() if decision.run_id == place.run_id), None)

    def choices(self, place: CheckpointLocation) -> tuple[CheckpointId, ...] | None:
        """Return None: without PrimeMaster there are no cuts."""
        del place

    def needed(self, place: CheckpointLocation) -> tuple[CheckpointId, ...]:
        """Return nothing: without PrimeMaster there are no cuts."""
        del place
        return ()

    def not_saved(self, place: CheckpointLocation, mark: CheckpointId, reason: str) -> None:
        """Do nothing: nobody is there to be told."""
        del place, mark, reason

    def shards(self, question: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return None: only PrimeMaster hands out shards."""
        del question

    def decide(
        self, place: CheckpointLocation, folder: Folder, chosen: CheckpointId | None, damaged: Sequence[str] = ()
    ) -> RestoreDecision:
        """Write the decision's file, and return the first one written."""
        del damaged
        return folder.decide(RestoreDecision(place.run_id, chosen))


class JournalBook:
    """PrimeMaster's journal, asked through the saver's agent."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._choices: dict[str, tuple[CheckpointId, ...] | None] = {}
        self._needed: dict[str, tuple[CheckpointId, ...]] = {}
        self._lock = threading.Lock()
        self._reporting: set[str] = set()
        """Ranks whose unsaved checkpoint is just being reported."""

    def commit(self, place: CheckpointLocation, mark: CheckpointId) -> str | None:
        """Let PrimeMaster journal the commit; return why the checkpoint does not count, as `Book.commit`."""
        oldest = Folder.of(place).oldest()
        fields = {"world": place.of, "mark": mark.json(), "oldest": oldest and oldest.json()}
        reply = self._ask({"what": "commit", **fields})
        if reply is None:
            return None
        self._needed[place.of] = tuple(CheckpointId.of(row) for row in reply.get("keep", ()))
        return reply["why"]

    def choices(self, place: CheckpointLocation) -> tuple[CheckpointId, ...] | None:
        """Return the checkpoints of this world in the last cuts; None where it has no part in one."""
        return self._choices.get(place.of)

    def needed(self, place: CheckpointLocation) -> tuple[CheckpointId, ...]:
        """Return the checkpoints of this world in the last cuts, and in the one under way."""
        return self._needed.get(place.of, ())

    def turn(self, place: CheckpointLocation, folder: Folder) -> RestoreDecision | None:
        """Return PrimeMaster's decision for this run; None: this saver decides. `folder` is unused."""
        del folder
        reply = self._ask_decision(place, {"what": "turn"})
        among = reply.get("among")
        self._choices[place.of] = None if among is None else tuple(CheckpointId.of(row) for row in among)
        return (
            None
            if reply["yours"]
            else RestoreDecision(place.run_id, reply["chosen"] and CheckpointId.of(reply["chosen"]))
        )

    def decide(
        self, place: CheckpointLocation, folder: Folder, chosen: CheckpointId | None, damaged: Sequence[str] = ()
    ) -> RestoreDecision:
        """Have the decision journaled, then write its file for later attempts."""
        messages = [text[:TEXT] for text in damaged[:TEXTS]]
        reply = self._ask_decision(place, {"what": "decide", "chosen": chosen and chosen.json(), "damaged": messages})
        # PrimeMaster's word, which may be that of another saver: the file must not say anything else.
        decision = RestoreDecision(place.run_id, reply["chosen"] and CheckpointId.of(reply["chosen"]))
        try:
            return folder.decide(decision)
        except OSError:  # the journal has it, which is enough in this attempt: a volume that refuses files can be read
            return decision

    def not_saved(self, place: CheckpointLocation, mark: CheckpointId, reason: str) -> None:
        """Tell PrimeMaster, in a thread: its journal may be on the same full volume, and other ranks' saves go on."""
        with self._lock:
            if place.name in self._reporting:  # the same disk refuses this save and the one before
                return
            self._reporting.add(place.name)
        question = {"what": "not saved", "world": place.of, "rank": place.name, "mark": mark.json(), "why": reason}
        threading.Thread(target=self._report, args=(place, question), name="dljob-not-saved", daemon=True).start()

    def _report(self, place: CheckpointLocation, question: Mapping[str, Any]) -> None:
        try:
            self._ask({**question, "folder": os.path.realpath(place.folder)})
        finally:
            with self._lock:
                self._reporting.discard(place.name)

    def shards(self, question: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return PrimeMaster's answer about shards of data; with `again` in it, ask once more. None: nobody answers."""
        return self._ask({**question, "what": "shards"})

    def _ask_decision(self, place: CheckpointLocation, question: dict[str, Any]) -> dict[str, Any]:
        run = {"attempt": place.attempt, "number": place.number}
        reply = None
        while reply is None or "again" in reply:  # another saver is still deciding
            reply = self._ask({**question, "world": place.of, "run": run})
            if reply is None:
                break
        if reply is None:
            raise CheckpointError(
                f"{place.name} cannot load: PrimeMaster, which chooses the checkpoint, does not answer"
            )
        if reply["why"]:
            raise CheckpointError(f"{place.name} cannot load: {reply['why']}")
        return reply
