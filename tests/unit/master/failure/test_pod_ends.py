"""What the operator tells of a pod's end, in its words, names the first cause: before Ray's word of it, or after."""

from __future__ import annotations

import pytest
from causes_kit import Story

from dljob.master.state.limits import ANNOUNCED_END_WINDOW_S, LATE_CAUSE_WINDOW_S

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
        ("Removed: somebody deleted it by force (pod j-ed4f5-w0)", "NodeLost"),
    ],
)
def test_the_words_of_kubernetes_name_the_cause(words: str, reason: str, first: bool):
    evidence = {"after": 1.0, "learned_of_node_of": "w/0", "clues": [["pod", words]]}
    timeline = [evidence, GONE] if first else [GONE, evidence]
    story = Story({"roles": [{"name": "w", "replicas": 2}], "timeline": timeline})
    assert story.tell() == [{"first": "w/0", "reason": reason, "secondary": set()}]
    (fault,) = [fault_record for fault_record in story.world.state.faults if not fault_record.root_number]
    assert fault.outcome is not None
    assert [clue.text for clue in fault.outcome.clues] == [words]


EVICTED = "EvictionByEvictionAPI: Eviction API: evicting (pod j-ed4f5-w0)"
HOOK = "pod j-ed4f5-w0 is told to end"


def evidence_of(source: str, words: str, after: float = 1.0) -> dict[str, object]:
    return {"after": after, "learned_of_node_of": "w/0", "clues": [[source, words]]}


@pytest.mark.parametrize(
    "timeline",
    [
        [evidence_of("notice", HOOK), evidence_of("pod", EVICTED), GONE],
        [evidence_of("pod", EVICTED), evidence_of("notice", HOOK), GONE],
        [evidence_of("notice", HOOK), GONE, evidence_of("pod", EVICTED)],
        [
            evidence_of("pod", EVICTED),
            evidence_of("notice", HOOK),
            evidence_of("pod", EVICTED),
            GONE,
            evidence_of("pod", EVICTED),
        ],
    ],
    ids=["the pod first", "Kubernetes first", "Kubernetes after the end", "again and again"],
)
def test_the_pod_and_kubernetes_both_speak_and_the_cause_is_whose_doing_it_is(timeline: list[dict[str, object]]):
    story = Story({"roles": [{"name": "w", "replicas": 2}], "timeline": timeline})
    assert story.tell() == [{"first": "w/0", "reason": "Preempted", "secondary": set()}]
    (fault,) = [fault_record for fault_record in story.world.state.faults if not fault_record.root_number]
    assert fault.outcome is not None
    assert sorted(clue.text for clue in fault.outcome.clues) == [EVICTED, HOOK]
    assert EVICTED in fault.cause


def test_an_old_announcement_is_not_told_beside_a_new_one():
    before = "Excluded: annotation dljob.io/exclude-nodes names Kubernetes node n1 (pod j-ed4f5-w0)"
    timeline = [
        evidence_of("pod", before),
        evidence_of("notice", HOOK, after=ANNOUNCED_END_WINDOW_S + LATE_CAUSE_WINDOW_S),
    ]
    story = Story({"roles": [{"name": "w", "replicas": 2}], "timeline": timeline})
    story.tell()
    assert [clue.text for notice in story.world.state.notices.values() for clue in notice.clues] == [HOOK]
