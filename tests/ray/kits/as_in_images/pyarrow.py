"""Stand-in that hides pyarrow: the project's images do not have it, and the extra `data` installs it for one example.

Each Ray process that finds pyarrow imports it and numpy before its first task: 0.2 s of processor time in each of the
thousand that these tests start (ray 2.60.0, ray/util/serialization_addons.py).
"""

raise ModuleNotFoundError("No module named 'pyarrow': these tests run as in the project's images", name="pyarrow")
