"""Where it is written down which checkpoints exist and what each life restores: PrimeMaster's journal.

The files say the same, later: a manifest is written when the journal has it, a decision's file when it is made. They
are what the next attempt of the job finds, whose journal is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dljob.errors import CheckpointError
from dljob.master.marks import Decision, Life, Mark, fence
from dljob.runtime.checkpoint.files import Folder
from dljob.runtime.checkpoint.model import Place

Ask = Callable[[Mapping[str, Any]], "dict[str, Any] | None"]
"""Asks PrimeMaster; None: there is nobody to ask any more."""


class Book(Protocol):
    """What a saver asks."""

    def commit(self, place: Place, mark: Mark) -> str | None:
        """Why a checkpoint whose parts are all on disk does not count, else empty; None: nobody can say."""
        ...

    def turn(self, place: Place, folder: Folder) -> Decision | None:
        """What this life restores; None: whoever asked is to decide it. Waits while another does."""
        ...

    def decide(self, place: Place, folder: Folder, chosen: Mark | None) -> Decision:
        """What this life restores: what was said first."""
        ...

    def shards(self, question: Mapping[str, Any]) -> dict[str, Any] | None:
        """What a rank says and asks of a data set (`dljob.runtime.shards`); None: nobody can answer."""
        ...


class FileBook:
    """Without a PrimeMaster: the files alone."""

    def commit(self, place: Place, mark: Mark) -> str | None:
        """The decisions in the folder say so."""
        return fence(mark, Folder.of(place).decisions())

    def turn(self, place: Place, folder: Folder) -> Decision | None:
        """What is decided already."""
        return next((made for made in folder.decisions() if made.life == place.life), None)

    def shards(self, question: Mapping[str, Any]) -> dict[str, Any] | None:
        """Shards are PrimeMaster's alone."""
        del question

    def decide(self, place: Place, folder: Folder, chosen: Mark | None) -> Decision:
        """The file that is there first."""
        return folder.decide(Decision(place.life, chosen))


class JournalBook:
    """PrimeMaster's journal, asked over the saver's line."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def commit(self, place: Place, mark: Mark) -> str | None:
        """Have it journaled."""
        said = self._ask({"what": "commit", "world": place.of, "mark": to_json(mark)})
        return None if said is None else said["why"]

    def turn(self, place: Place, folder: Folder) -> Decision | None:
        """Whether it is decided; of a world of one nobody else can decide."""
        del folder
        said = self._heard(place, {"what": "turn"})
        return None if said["yours"] else Decision(place.life, said["chosen"] and to_mark(said["chosen"]))

    def decide(self, place: Place, folder: Folder, chosen: Mark | None) -> Decision:
        """Have it journaled, then leave the file for later attempts."""
        said = self._heard(place, {"what": "decide", "chosen": chosen and to_json(chosen)})
        return folder.decide(Decision(place.life, said["chosen"] and to_mark(said["chosen"])))

    def shards(self, question: Mapping[str, Any]) -> dict[str, Any] | None:
        """Its answer; it may say that who asked is to ask again."""
        return self._ask({**question, "what": "shards"})

    def _heard(self, place: Place, question: dict[str, Any]) -> dict[str, Any]:
        life = {"attempt": place.attempt, "number": place.number}
        said = None
        while said is None or "again" in said:  # somebody else decides it, and has not yet
            said = self._ask({**question, "world": place.of, "life": life})
            if said is None:
                break
        if said is None:
            raise CheckpointError(f"{place.name} cannot load: PrimeMaster is not there to say from where it goes on")
        if said["why"]:
            raise CheckpointError(f"{place.name} cannot load: {said['why']}")
        return said


def to_json(mark: Mark) -> dict[str, int]:
    """A mark for the line."""
    return {"attempt": mark.life.attempt, "number": mark.life.number, "step": mark.step}


def to_mark(data: Mapping[str, int]) -> Mark:
    """And back."""
    return Mark(Life(data["attempt"], data["number"]), data["step"])
