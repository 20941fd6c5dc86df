"""What the operator tells of a pod's end, in its words, names the first cause: before Ray's word of it, or after."""

from __future__ import annotations

import pytest
from causes_kit import Story

GONE = {"host": "w/0", "lost": {"reason": "Unknown", "detail": "The actor is dead because its node has died."}}
OOM = "OOMKilled: container ray-worker ended with exit code 137 (OOMKilled) (pod j-ed4f5-w0)"


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (OOM, "OOMKilled"),
        ("Evicted: The node was low on resource: memory. (pod j-ed4f5-w0)", "Preempted"),
        ("EvictionByEvictionAPI: Eviction API: evicting (pod j-ed4f5-w0)", "Preempted"),
        ("DeletionByTaintManager: Taint manager: deleting due to NoExecute taint (pod j-ed4f5-w0)", "Preempted"),
        ("PreemptionByScheduler: default-scheduler: preempting to accommodate a higher priority pod", "Preempted"),
        ("Excluded: annotation dljob.io/exclude-nodes names Kubernetes node n1 (pod j-ed4f5-w0)", "Preempted"),
        ("Deleted: somebody deleted it (pod j-ed4f5-w0)", "Preempted"),
    ],
)
def test_the_words_of_kubernetes_name_the_cause(words: str, reason: str, first: bool):
    told = {"after": 1.0, "learned_of_node_of": "w/0", "clues": [["pod", words]]}
    timeline = [told, GONE] if first else [GONE, told]
    story = Story({"roles": [{"name": "w", "replicas": 2}], "timeline": timeline})
    assert story.tell() == [{"first": "w/0", "reason": reason, "secondary": set()}]
    (fault,) = [each for each in story.world.state.faults if not each.root]
    assert fault.outcome is not None
    assert [clue.text for clue in fault.outcome.clues] == [words]
