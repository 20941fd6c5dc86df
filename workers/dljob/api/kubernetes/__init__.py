"""Jobs on Kubernetes, for scripts and for the command: the code's upload, the DLJob, orders, logs.

submit.py   folder -> ConfigMap -> DLJob       package.py, ignore.py   what of a folder goes along
jobs.py     find a job, read its status        orders.py               restart and stop, and their arrival
suspension.py   suspend and resume
gateway.py  the job's own voice, on its head   logs.py                 what the ranks wrote
timeline.py what happened to it
handle.py   all of it for a script, blocking

Everything here is asynchronous but handle.py, takes a `Kube` and a namespace, and prints nothing.
"""

from __future__ import annotations
