"""PURE: planning a call's requests and merging their answers: meshes, splits, dispatch, collect. No Ray, no clock.

A call has a target and two functions, a split and a merge, which know nothing of each other: `dispatch` picks the ranks
and cuts the arguments, `collect` makes one value of the answers. What carries the calls is in `dljob.runtime`.
"""
