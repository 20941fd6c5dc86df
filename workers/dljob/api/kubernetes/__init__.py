"""Jobs on Kubernetes, for scripts and for the command: upload of the code, the DLJob, orders, logs.

submit.py   folder -> ConfigMap -> DLJob       package.py, ignore.py   which files of a folder go along
jobs.py     find a job, read its status        orders.py               restart and stop, until they are accepted
suspension.py   suspend and resume             scaling.py              size of an Elastic role
gateway.py  the gateway on the job's head      logs.py, whole_logs.py  output of the ranks
timeline.py Events and notes                   master_log.py           log of PrimeMaster
views.py    a job in lists and in detail       refusals.py             errors of the API server
handle.py   all of it, blocking, for scripts and for the command; connect.py: its connection

All modules but handle.py are asynchronous or pure, take a `Kube` and a namespace, and print nothing.
"""

from __future__ import annotations
