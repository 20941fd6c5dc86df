"""The Pythons that run ranks, and the Ray that runs jobs. Without pydantic, since hosts of ranks read it too."""

OLDEST, NEWEST = (3, 11), (3, 13)
"""The first and the last one."""
RAY = "2.60"
"""The minor version of Ray; the launcher, which imports nothing of dljob, has it in runtime/job/versions.py too."""
