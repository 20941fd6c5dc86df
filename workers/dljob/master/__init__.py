"""PURE. What PrimeMaster decides: state, events, actions, transition, failover, assignment. `now` is an argument.

Rooms from the lowest up; each imports only rooms named before it: `state`, `ledger`, `start`, `failure`, `placement`.
`transition` takes an event to the next state and its actions; `status` shows a state to users. `persistence` writes
events and states into the journal and reads those of other versions.
"""
