"""Ray's text about a kill by its memory monitor becomes a sentence."""

from __future__ import annotations

from dljob.master.state import causes
from dljob.master.state.views import Outcome, Reason
from dljob.telemetry.memory_kills import is_memory_kill, name_process, summarize

TEXT = """3 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 127.0.0.1, ID: c386) was 23.10GB used / 23.54GB limit (0.98)
OOM kill reason: Memory usage 4538470400B exceeded threshold of 505530208B (2.0% of 25276510208B limit)
Considered workers: [
Selected to kill: (Actor(23bf): job ID=01000000, lease ID=00, task name=A.__init__, required resources={CPU: 0.1}, pid=40, actual memory used=0.04GB, worker ID=4364)
Selected to kill: (Actor(23b0): job ID=01000000, lease ID=01, task name=A.__init__, required resources={CPU: 0.1}, pid=41, actual memory used=1.90GB, worker ID=4365)
Selected to kill: (Actor(23b1): job ID=01000000, lease ID=02, task name=A.__init__, required resources={CPU: 0.1}, pid=42, actual memory used=0.20GB, worker ID=4366)
]
Top 10 memory users: PID	MEM(GB)	COMMAND
41	1.90	ray::Host"""  # noqa: E501 - Ray's own line
SENTENCE = "node low on memory (23.10 of 23.54GB used): Ray's memory monitor killed 3, largest pid 41 (1.9GB)"


def test_a_kill_for_memory_names_the_largest_process_and_how_many() -> None:
    assert is_memory_kill(TEXT)
    assert not is_memory_kill("The actor died because its owner has died.")
    assert summarize(TEXT) == SENTENCE
    assert name_process(SENTENCE, {41: "trainer/1", 40: "trainer/0"}) == SENTENCE.replace("pid 41", "trainer/1")
    assert name_process(SENTENCE, {40: "trainer/0"}) == SENTENCE, "a process that is no rank keeps its pid"


def test_another_text_of_the_monitor_is_told_without_a_process() -> None:
    assert summarize("due to the node running low on memory") == "node low on memory: Ray's memory monitor killed it"


def test_the_sentence_is_evidence_for_a_kill_for_memory() -> None:
    cause = causes.classify(Outcome(ok=False, reason=Reason.UNKNOWN, detail=SENTENCE))
    assert (cause.reason, cause.rule, cause.line) == (Reason.OOM_KILLED, "ray-oom", SENTENCE)
