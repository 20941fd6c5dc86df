"""The reference page of faults files, made from their models."""

from __future__ import annotations

from dljob.spec.crd import schema_of
from dljob.spec.faults import FileFault
from dljob.spec.reference import sections

_HEAD = """<!-- Made by `python -m dljob.spec.generate`; change the models, not this file. -->
# Faults files

A YAML or JSON list of faults: what is done to whom in a job, when, and what the job shall say of it. The same file
drives a job of this machine (`dljob run JOB --faults FILE`), one that runs already (`dljob chaos JOB FILE`), and a
simulated one (`dljob sim JOB --faults FILE`). See [how to](../howto/faults.md). Fields in **bold** must be there.

```yaml
- {when: {step: 15}, target: rollout/1, fault: kill, expect: {cause: Unknown, level: Process}}
- {when: {time: 60}, target: node/0, fault: stop, seconds: 30, expect: {cause: NodeFrozen}}
- {when: {event: Restarting, count: 2}, target: master, fault: kill}
```
"""

_RULES = """## What takes what

| target | faults |
| --- | --- |
| a role (all its ranks at once), or a rank | kill, stop, oom, slow |
| `master` | kill |
| `node/<index>`, `node/<beginning of its id>` | kill, stop |

`seconds` is for stop and slow, `factor` for slow, which needs both; `count` is for `event`. All problems of a file are
told at once, at file:line:column. An `event` is a reason as `dljob events` shows it, such as `Restarting`, `Recovered`,
`NodeLost` or `MasterRestarted`.
"""


def faults_reference() -> str:
    """The page as Markdown."""
    return "\n".join([_HEAD, *sections("", schema_of(FileFault), "A fault"), _RULES])
