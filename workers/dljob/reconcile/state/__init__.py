"""One job at one moment.

In reading order: `model` (what is observed, what is done), `fields`, `names`, `reasons`, `accept` (the spec), `context`
(the job as policies see it), `steps` (what a policy decides), `snapshot` (PrimeMaster's word), `placement`,
`exclusions`, `handover`, `hints`.
"""
