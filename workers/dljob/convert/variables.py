"""Variables that differ between pods: which of them a rank has, which its command sets, and which are lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import get_args

from dljob.convert.command import mentions
from dljob.convert.pods import ConvertedPod, plain_variable
from dljob.convert.source import Draft, SourceManifest
from dljob.spec.variables import StoreVariable, TorchVariable

TORCH: tuple[str, ...] = (*get_args(TorchVariable), *get_args(StoreVariable))
"""Variables that PrimeMaster gives to each rank of an Elastic role."""
INDEX = "JOB_COMPLETION_INDEX"
COUNTS = ("NODE_NUM", "WORKER_NUM", "PET_NNODES")
GIVEN = (*TORCH, INDEX, "NODE_RANK", "NODE_NUM", "WORKER_NUM")
"""Variables that depend on the rank."""
OF_MACHINE = {"RANK": "GROUP_RANK", "WORLD_SIZE": "GROUP_WORLD_SIZE"}
"""What operators number by pods, where a pod has several ranks -> the number of the machine."""


def exports(
    pods: Sequence[ConvertedPod], names: Collection[str], *, machine: bool = False, index: int = 0
) -> Mapping[str, str]:
    """Return variables that a command sets from those of its rank: name -> value within double quotes.

    Args:
        pods: the pods of the role.
        names: the variables.
        machine: whether pods had several ranks, so that the number is that of the machine.
        index: pods of each Job where the role has several: each counts its own.
    """
    number, count = ("GROUP_RANK", "GROUP_WORLD_SIZE") if machine else ("DLJOB_RANK", "DLJOB_REPLICAS")
    numbered = {INDEX, *(name for pod in pods for name in pod.rank_variables if name not in GIVEN)}
    among = f"$(({number} % {index}))" if index else f"${number}"
    return {name: among if name in numbered else f"${count}" if name in COUNTS else f"${number}" for name in names}


def of_ranks(draft: Draft, pods: Sequence[ConvertedPod], *, torch: bool) -> list[str]:
    """Return the listed variables that a role of one rank for each pod must set, and say what becomes of the others."""
    source, set_names = draft.source, dict[str, None]()
    for pod in pods:
        for name, at in list(pod.rank_variables.items()):
            value = source.text((*at, "value")) if source.value((*at, "valueFrom")) is None else None
            if name == "TF_CONFIG" or (name in TORCH and torch):
                continue
            if name not in TORCH:
                set_names[name] = None
                source.harmless(at, "the command sets it to the number of the rank, or to that of all ranks")
            elif value is None:
                source.drop(at, "independent ranks have no rendezvous: read DLJOB_RANK and DLJOB_REPLICAS")
            else:
                pod.env[name] = value
                plain_variable(source, at, name)
    return list(set_names)


def of_torchrun(source: SourceManifest, pods: Sequence[ConvertedPod], text: str, line: Collection[str]) -> list[str]:
    """Return the listed variables that a torchrun line's text must set, and say what becomes of the others.

    Args:
        source: the document.
        pods: the pods of the role.
        text: what stands around the call of torchrun.
        line: all words of the command, which torchrun's own options are among.
    """
    set_names = dict[str, None]()
    for pod in pods:
        for name, at in pod.rank_variables.items():
            if name in TORCH:
                continue
            if mentions(text, name):
                set_names[name] = None
                source.harmless(at, "the command sets it to the number of the machine, or to that of all machines")
            elif any(name in word for word in line):
                source.harmless(at, "only options of torchrun read it, and PrimeMaster numbers the machines")
            else:
                source.drop(at, "ranks have GROUP_RANK and GROUP_WORLD_SIZE in its place")
    return list(set_names)
