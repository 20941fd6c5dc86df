"""PURE. What PrimeMaster decides: state, events, actions, transition, failover, assignment. `now` is an argument."""
