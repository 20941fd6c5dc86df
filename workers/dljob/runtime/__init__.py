"""The shells of a job on Ray: PrimeMaster, worker hosts, role calls, backends, journals. Only they import ray or torch.

Rooms from the lowest up; each imports only rooms named before it: `linux`, `logs`, `process`, `backend`, `rpc`,
`queues`, `collectives`, `checkpoint`, `weights`, `data`, `node`, `serving`, `worker`, `journal`, `control_socket`,
`controller`, `job`, `faults`, `yr`. `ray_private` stands below them all. No room imports `sinks`, which is a program of
its own. `launcher`, `unpack` and `leave` forward to modules whose old paths stand in the commands of pods.
"""
