"""Admission webhook: DLJobs that cannot run are refused when they are applied.

In reading order: `server` answers the API server over HTTPS; `process` hands each question to a separate process and
limits its time; `judge` is that process; `certificate` loads the certificate, follows its renewal and reports its days.
"""
