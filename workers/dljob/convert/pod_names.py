"""Names of pods that another controller gave: programs that go on to use them would wait for nobody."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dljob.convert.source import Draft

_REPLICA = r"{name}-(?:master|worker|ps|chief|evaluator)-\d+"
_POD_OF_JOB_SET = r"{name}-[a-z][a-z0-9-]*-\d+-\d+"
_HEAD_SERVICE = r"[a-z0-9][a-z0-9-]*-head-svc"
_POD_NAMES = {
    "JobSet": _POD_OF_JOB_SET,
    "TrainJob": _POD_OF_JOB_SET,
    "PyTorchJob": _REPLICA,
    "TFJob": _REPLICA,
    "ElasticJob": r"elasticjob-{name}-dlrover-master|{name}-edljob-[a-z]+-\d+",
    "Job": r"{name}-\d+(?=\.[a-z])",
    "RayJob": _HEAD_SERVICE,
    "RayCluster": _HEAD_SERVICE,
}
"""Kind -> pattern of the host names that its controller makes, with the job's own name as `name`."""


def report_pod_names(draft: Draft, kind: str) -> None:
    """Drop the fields in which the DLJob has the host name of a pod, or of a service, of the job that it replaces."""
    source = draft.source
    own_name = re.escape(source.text(("metadata", "name")) or "")
    if kind not in _POD_NAMES or not own_name:
        return
    pattern = re.compile(rf"(?<![\w.-])(?:{_POD_NAMES[kind].format(name=own_name)})(?![\w-])")
    # What was an option of torchrun's rendezvous is in no role any more.
    names = {name for text in _texts_in(draft.get(("spec",))) for name in pattern.findall(text)}
    for leaf in source.leaves(("spec",)):
        value = source.value(leaf)
        for name in pattern.findall(value) if isinstance(value, str) else ():
            if name in names:
                reason = (
                    f"no pod is called {name} here: {{{{roles.NAME.endpoints}}}} of a server role, "
                    "and MASTER_ADDR for the ranks of an Elastic one, have addresses"
                )
                source.mark_dropped(leaf, reason)


def _texts_in(value: object) -> Iterator[str]:
    """Yield all texts in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for child in value.values():  # pyright: ignore[reportUnknownVariableType]
            yield from _texts_in(child)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, list):
        for child in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _texts_in(child)  # pyright: ignore[reportUnknownArgumentType]
