"""Name, namespace, labels and annotations of a manifest, and fields that all kinds have."""

from __future__ import annotations

import re

from dljob.convert.pods import SERVER_METADATA_FIELDS, SET_BY_SERVER
from dljob.convert.source import Draft, UnfitError
from dljob.spec.scalars import LABEL_PATTERN, QUALIFIED_PATTERN, dns_name
from dljob.spec.text.tree import Loc

MAX_NAME_LENGTH = 47
QUEUE_LABELS = {"kueue.x-k8s.io/queue-name": "queueName", "kueue.x-k8s.io/priority-class": "priorityClassName"}
LAST_APPLIED_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"


def convert_metadata(draft: Draft) -> None:
    """Convert apiVersion, kind, metadata and status."""
    source = draft.source
    draft.document |= {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {}, "spec": {}}
    source.mark_carried(("apiVersion",), ("apiVersion",))
    source.mark_carried(("kind",), ("kind",))
    source.mark_harmless(("status",), "the controller writes it")
    _convert_name(draft)
    for key, at in source.fields(("metadata",)):
        if key == "namespace":
            if text := source.text(at):
                draft.move(at, at, text)
        elif key in ("labels", "annotations"):
            for name, label_loc in source.fields(at):
                _convert_label(draft, label_loc, key, name)
        elif key in SERVER_METADATA_FIELDS:
            source.mark_harmless(at, SET_BY_SERVER)
        elif key == "finalizers":
            source.mark_harmless(at, "dljob sets its own")


def _convert_name(draft: Draft) -> None:
    """Carry the name, else generateName, as a valid name of a DLJob."""
    source = draft.source
    for key in ("name", "generateName"):
        at: Loc = ("metadata", key)
        if text := source.text(at):
            name = dns_name(text, MAX_NAME_LENGTH)
            limits = f"at most {MAX_NAME_LENGTH} characters, a letter first"
            reason = "" if name == text else f"{text} is no name of a DLJob: {limits}"
            draft.move(at, ("metadata", "name"), name, reason)
            return
    raise UnfitError(("metadata",), "has no name", "give it metadata.name")


def _convert_label(draft: Draft, loc: Loc, section: str, name: str) -> None:
    """Carry an entry of metadata.labels or metadata.annotations, whichever `section` names."""
    source = draft.source
    text = source.text(loc)
    if text is None:
        return
    if section == "labels" and name in QUEUE_LABELS:
        draft.move(loc, ("spec", "scheduling", QUEUE_LABELS[name]), text)
    elif name == LAST_APPLIED_ANNOTATION:
        source.mark_harmless(loc, "kubectl writes it")
    elif name.startswith("dljob.io/"):
        source.mark_dropped(loc, f"{name} is set by dljob")
    elif not re.fullmatch(QUALIFIED_PATTERN, name) or (section == "labels" and not re.fullmatch(LABEL_PATTERN, text)):
        source.mark_dropped(loc, f"{name} is no valid label")
    else:
        draft.move(loc, ("metadata", section, name), text)


def carry_number_or_switch(draft: Draft, loc: Loc, to: Loc, reason: str = "") -> None:
    """Carry a whole number or a switch as it is; a value of another type is dropped."""
    source = draft.source
    value = source.value(loc)
    if isinstance(value, bool):
        draft.move(loc, to, value, reason)
    elif (number := source.number(loc)) is not None:
        draft.move(loc, to, number, reason)
