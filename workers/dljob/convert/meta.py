"""Name, namespace, labels and annotations of a manifest, and fields that all kinds have."""

from __future__ import annotations

import re

from dljob.convert.pods import BY_SERVER, WRITTEN
from dljob.convert.source import Draft, UnfitError
from dljob.spec.scalars import LABEL_PATTERN, QUALIFIED_PATTERN, dns_name
from dljob.spec.text.tree import Loc

LONGEST = 47
QUEUE = {"kueue.x-k8s.io/queue-name": "queueName", "kueue.x-k8s.io/priority-class": "priorityClassName"}
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def head(draft: Draft) -> None:
    """Convert apiVersion, kind, metadata and status."""
    source = draft.source
    draft.document |= {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {}, "spec": {}}
    source.carry(("apiVersion",), ("apiVersion",))
    source.carry(("kind",), ("kind",))
    source.harmless(("status",), "the controller writes it")
    _name(draft)
    for key, at in source.keys(("metadata",)):
        if key == "namespace":
            if text := source.text(at):
                draft.move(at, at, text)
        elif key in ("labels", "annotations"):
            for name, place in source.keys(at):
                _label(draft, place, key, name)
        elif key in WRITTEN:
            source.harmless(at, BY_SERVER)
        elif key == "finalizers":
            source.harmless(at, "dljob sets its own")


def _name(draft: Draft) -> None:
    source = draft.source
    for key in ("name", "generateName"):
        at: Loc = ("metadata", key)
        if text := source.text(at):
            name = dns_name(text, LONGEST)
            note = "" if name == text else f"{text} is no name of a DLJob: at most {LONGEST} characters, a letter first"
            draft.move(at, ("metadata", "name"), name, note)
            return
    raise UnfitError(("metadata",), "has no name", "give it metadata.name")


def _label(draft: Draft, loc: Loc, section: str, name: str) -> None:
    source = draft.source
    text = source.text(loc)
    if text is None:
        return
    if section == "labels" and name in QUEUE:
        draft.move(loc, ("spec", "scheduling", QUEUE[name]), text)
    elif name == APPLIED:
        source.harmless(loc, "kubectl writes it")
    elif name.startswith("dljob.io/"):
        source.drop(loc, f"{name} is set by dljob")
    elif not re.fullmatch(QUALIFIED_PATTERN, name) or (section == "labels" and not re.fullmatch(LABEL_PATTERN, text)):
        source.drop(loc, f"{name} is no valid label")
    else:
        draft.move(loc, ("metadata", section, name), text)


def scalar(draft: Draft, loc: Loc, to: Loc, reason: str = "") -> None:
    """Carry a whole number or a switch as it is."""
    source = draft.source
    value = source.value(loc)
    if isinstance(value, bool):
        draft.move(loc, to, value, reason)
    elif (number := source.number(loc)) is not None:
        draft.move(loc, to, number, reason)
