"""Variables that differ between pods: which of them a rank has, which its command sets, and which are lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import get_args

from dljob.convert.command import reads_variable
from dljob.convert.pods import ConvertedPod, carry_variable_to_role
from dljob.convert.source import Draft, SourceManifest
from dljob.spec.variables import StoreVariable, TorchVariable

SET_BY_PRIME_MASTER: tuple[str, ...] = (*get_args(TorchVariable), *get_args(StoreVariable))
"""Variables that PrimeMaster gives to each rank of an Elastic role."""
POD_INDEX = "JOB_COMPLETION_INDEX"
_POD_COUNTS = ("NODE_NUM", "WORKER_NUM", "PET_NNODES")
RANK_DEPENDENT = (*SET_BY_PRIME_MASTER, POD_INDEX, "NODE_RANK", "NODE_NUM", "WORKER_NUM")
"""Variables that depend on the rank."""
MACHINE_COUNTERPARTS = {"RANK": "GROUP_RANK", "WORLD_SIZE": "GROUP_WORLD_SIZE"}
"""Variables with which operators number pods -> those with which a rank has the number and the count of machines."""


def export_values(
    pods: Sequence[ConvertedPod], names: Collection[str], *, by_machine: bool = False, pods_per_job: int = 0
) -> Mapping[str, str]:
    """Return the value of each variable as a rank's shell computes it, such as `$DLJOB_RANK`, for double quotes.

    Args:
        pods: the pods of the role.
        names: the variables.
        by_machine: whether pods had several ranks, so that the number is that of the machine.
        pods_per_job: pods of each Job where the role has several Jobs: each numbers its own pods.
    """
    number, count = ("GROUP_RANK", "GROUP_WORLD_SIZE") if by_machine else ("DLJOB_RANK", "DLJOB_REPLICAS")
    indices = {POD_INDEX, *(name for pod in pods for name in pod.rank_dependent if name not in RANK_DEPENDENT)}
    index_value = f"$(({number} % {pods_per_job}))" if pods_per_job else f"${number}"
    values = {name: f"${count}" if name in _POD_COUNTS else f"${number}" for name in names}
    return values | {name: index_value for name in names if name in indices}


def rank_variables_to_export(draft: Draft, pods: Sequence[ConvertedPod], *, in_torch_world: bool) -> list[str]:
    """Return the rank-dependent variables of pods with one rank each that a command must set, and mark the others.

    `in_torch_world`: PrimeMaster gives the ranks the variables of torch's rendezvous.
    """
    source = draft.source
    names_to_export: list[str] = []
    for pod in pods:
        for name, at in pod.rank_dependent.items():
            plain_value = source.text((*at, "value")) if source.value((*at, "valueFrom")) is None else None
            if name == "TF_CONFIG" or (name in SET_BY_PRIME_MASTER and in_torch_world):
                continue  # dljob sets it
            if name not in SET_BY_PRIME_MASTER:
                names_to_export.append(name)
                source.mark_harmless(at, "the command sets it to the number of the rank, or to that of all ranks")
            elif plain_value is None:
                source.mark_dropped(at, "independent ranks have no rendezvous: read DLJOB_RANK and DLJOB_REPLICAS")
            else:
                pod.plain_env[name] = plain_value
                carry_variable_to_role(source, at, name)
    return list(dict.fromkeys(names_to_export))


def machine_variables_to_export(
    source: SourceManifest, pods: Sequence[ConvertedPod], text_around_call: str, command_words: Collection[str]
) -> list[str]:
    """Return the rank-dependent variables of pods that a text around torchrun must set, and mark the others.

    `text_around_call` stands before and behind torchrun; `command_words` are all words, with torchrun's own options.
    """
    names_to_export: list[str] = []
    for pod in pods:
        for name, at in pod.rank_dependent.items():
            if name in SET_BY_PRIME_MASTER:
                continue
            if reads_variable(text_around_call, name):
                names_to_export.append(name)
                source.mark_harmless(at, "the command sets it to the number of the machine, or to that of all machines")
            elif any(name in word for word in command_words):
                source.mark_harmless(at, "only options of torchrun read it, and PrimeMaster numbers the machines")
            else:
                source.mark_dropped(at, "ranks have GROUP_RANK and GROUP_WORLD_SIZE in its place")
    return list(dict.fromkeys(names_to_export))
