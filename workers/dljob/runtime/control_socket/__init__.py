"""The control socket: questions and commands about one job on this machine, without Ray.

PrimeMaster listens on a unix socket that only the job's owner and root may use; commands in other terminals connect to
it. In reading order: `messages` (requests and answers as lines of JSON), `location` (the socket's path, and its entry
in `job.json`), `server` (PrimeMaster's end), `client` (a command's end). `dljob.runtime.job.socket_relay` is a child
process that joins a Ray cluster and answers the same requests, for jobs whose PrimeMaster runs elsewhere.

The modules that a command imports load no Ray: a command answers in the time that Python takes to start.
"""
