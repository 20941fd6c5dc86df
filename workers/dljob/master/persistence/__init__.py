"""The journal's records, and orders read back from it.

In reading order: `codec` (events and states as JSON), `changes` (states as differences), `superseded` (actions of a
batch without those that a later one undoes), `migration` (states that other versions wrote).
"""
