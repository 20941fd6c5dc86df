"""The present data of a live page, and what changed in it since a version that a reader knows. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dljob.report.page import to_json

TAILS = 20_000
"""Changes of lanes that are kept for readers; one that is further behind gets whole lanes."""
EVENTS = 2000
"""Newest events that are kept, and that a page begins with; it asks for earlier ones when its reader wants them."""
ANSWERS = 16
"""Encoded answers that are kept: most readers ask for the same version."""


class LaneTail(NamedTuple):
    """The end of a rank's lane from its value number `keep` on."""

    role: str
    rank: int
    keep: int
    values: list[float]


class LiveDocument:
    """Parts of a page, each with the revision of its last change.

    A version is `<name of this document>.<revision>.<number of events>`: the reader says what it has, so nothing is
    kept of readers. A version of another document, of an earlier command, gets everything.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.revision = 0
        self.parts: dict[str, Any] = {}
        self.events: list[Mapping[str, Any]] = []
        """The last EVENTS of them."""
        self.told = 0
        """Number of the events that it was given."""
        self._changed: dict[str, int] = {}
        self._tails: deque[tuple[int, LaneTail]] = deque()
        self._tails_since = 0
        """All tails of later revisions are kept."""
        self._answers: dict[str, bytes] = {}

    @property
    def version(self) -> str:
        """The present version."""
        return f"{self._name}.{self.revision}.{self.told}"

    def restart(self) -> None:
        """Forget all parts and events: readers begin anew with what follows."""
        self._name += "+"
        self.revision = self.told = 0
        self.parts, self.events, self._changed = {}, [], {}
        self._tails.clear()
        self._tails_since = 0
        self._answers.clear()

    def put(
        self,
        parts: Mapping[str, Any],
        events: Iterable[Mapping[str, Any]] = (),
        tails: Sequence[LaneTail] = (),
    ) -> bool:
        """Take new values of parts, further events, and ends of lanes; return whether anything changed."""
        changed = {key: value for key, value in parts.items() if key not in self.parts or self.parts[key] != value}
        fresh = list(events)
        if not changed and not fresh and not tails:
            return False
        self.revision += 1
        self.parts.update(changed)
        self._changed.update(dict.fromkeys(changed, self.revision))
        self.events = [*self.events, *fresh][-EVENTS:]
        self.told += len(fresh)
        if "lanes" in changed:
            self._tails.clear()
            self._tails_since = self.revision
        for tail in tails:
            self._append(tail)
        self._answers.clear()
        return True

    def _append(self, tail: LaneTail) -> None:
        if len(self._tails) >= TAILS:
            self._tails_since = self._tails.popleft()[0]
        self._tails.append((self.revision, tail))
        ranks = self.parts["lanes"].setdefault(tail.role, [])
        ranks.extend([] for _ in range(tail.rank + 1 - len(ranks)))
        ranks[tail.rank][tail.keep :] = tail.values

    def all_data(self) -> dict[str, Any]:
        """Return all data, for a page that begins."""
        # Events of Kubernetes have no number.
        left_out = next((event["seq"] - 1 for event in self.events if "seq" in event), 0)
        return {**self.parts, "events": self.events, "eventsLeftOut": left_out, "version": self.version}

    def answer(self, known: str) -> bytes | None:
        """Return what changed since a version, as JSON; None if nothing did."""
        if known == self.version:
            return None
        if known not in self._answers:
            if len(self._answers) >= ANSWERS:
                self._answers.clear()
            data = self._since(known) or self.all_data()
            self._answers[known] = to_json(data).encode(errors="replace")
        return self._answers[known]

    def _since(self, known: str) -> dict[str, Any] | None:
        name, _, rest = known.partition(".")
        revision, _, events = rest.partition(".")
        if name != self._name or not revision.isdecimal() or not events.isdecimal():
            return None
        base, count = int(revision), int(events)
        # Of a reader that slept too long, the events between are not kept any more.
        if base > self.revision or not self.told - len(self.events) <= count <= self.told:
            return None
        parts = {key: self.parts[key] for key, at in self._changed.items() if at > base}
        if self._tails_since > base and "lanes" not in parts and "lanes" in self.parts:
            parts["lanes"] = self.parts["lanes"]
        elif "lanes" not in parts and (tails := [tail for at, tail in self._tails if at > base]):
            parts["tails"] = tails
        fresh = self.events[len(self.events) - (self.told - count) :]
        return {**parts, "since": known, "version": self.version, "events": fresh}
