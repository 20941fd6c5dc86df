"""The reference page of faults files, made from their models."""

from __future__ import annotations

from dljob.spec.crd import schema_of
from dljob.spec.loading.faults import FileFault
from dljob.spec.reference import sections

_HEAD = """<!-- Made by `python -m dljob.spec.generate`; change the models, not this file. -->
# Faults files

A YAML or JSON list of faults: the fault to inject, its target, its time, and the incident that the job must report. The
same file drives a job of this machine (`dljob run JOB --faults FILE`), a running job (`dljob chaos JOB FILE`), and a
simulated job (`dljob sim JOB --faults FILE`). See [how to](../howto/faults.md). Fields in **bold** are required.

```yaml
- {when: {step: 15}, target: rollout/1, fault: kill, expect: {cause: Unknown, level: Process}}
- {when: {time: 60}, target: node/0, fault: stop, seconds: 30, expect: {cause: NodeFrozen}}
- {when: {event: Restarting, count: 2}, target: master, fault: kill}
```
"""

_RULES = """## Faults by target

| target | faults |
| --- | --- |
| a role (all its ranks at once), or a rank | kill, stop, oom, slow |
| `master` | kill |
| `queue/<name>` | kill |
| `node/<index>`, `node/<beginning of its id>`; `pod/...` likewise | kill, stop, leave, cut |
| `operator` | kill; only on Kubernetes is anything done |

`seconds` is for stop, slow, leave and cut, `factor` for slow; slow needs both, leave and cut need seconds; `count` is
for `event`. All problems of a file are reported at once, at file:line:column. An `event` is a reason that
`dljob events` shows, such as `Restarting`, `Recovered`, `NodeLost` or `MasterRestarted`.
"""


def faults_reference() -> str:
    """Return the page as Markdown."""
    return "\n".join([_HEAD, *sections("", schema_of(FileFault), "A fault"), _RULES])
