"""The Pythons that run ranks. Without pydantic, since hosts of ranks read it too."""

OLDEST, NEWEST = (3, 11), (3, 13)
"""The first and the last one."""
