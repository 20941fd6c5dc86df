"""The job at one moment, as the policies read it, and what they return.

In reading order: `model` (what is observed, what is done), `fields`, `names`, `reasons`, `accept` (the spec), `context`
(the job as policies see it), `steps` (the result of a policy), `snapshot` (PrimeMaster's report), `placement`,
`exclusions`, `handover`, `hints`.

"""
