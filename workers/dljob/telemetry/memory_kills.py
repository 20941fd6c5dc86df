"""Words about a kill by Ray's memory monitor: Ray's page of text in, a sentence out.

Source: ray 2.60, NodeManager::CreateOomKillMessageDetails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

LOW = "node low on memory"
"""How the sentence begins; a rule of `telemetry.causes` finds it."""
_USED = re.compile(r" was (?P<used>[\d.]+)GB used / (?P<limit>[\d.]+)GB limit")
_KILLED = re.compile(r"Selected to kill: \(.*?\bpid=(?P<pid>\d+), actual memory used=(?P<size>[\d.]+)GB")
_PROCESS = re.compile(r"\bpid (?P<pid>\d+)\b")


def is_memory_kill(text: str) -> bool:
    """Whether Ray's text is about a kill by its memory monitor."""
    return "due to the node running low on memory" in text


def summarize(text: str) -> str:
    """Return Ray's text as a sentence: `node low on memory (23.1 of 23.5GB used): 3 killed, largest pid 41 (1.9GB)`."""
    used, killed = _USED.search(text), {match["pid"]: float(match["size"]) for match in _KILLED.finditer(text)}
    fill = f" ({used['used']} of {used['limit']}GB used)" if used else ""
    if not killed:
        return f"{LOW}{fill}: Ray's memory monitor killed it"
    pid = max(killed, key=lambda killed_pid: killed[killed_pid])
    return f"{LOW}{fill}: Ray's memory monitor killed {len(killed)}, largest pid {pid} ({killed[pid]:g}GB)"


def name_process(sentence: str, names: Mapping[int, str]) -> str:
    """Return the sentence with the name of the process that it is about; pid -> name."""
    return _PROCESS.sub(lambda match: names.get(int(match["pid"]), match[0]), sentence)
