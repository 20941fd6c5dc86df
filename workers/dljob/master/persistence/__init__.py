"""The journal's records.

`codec` writes events and states, `changes` writes states as differences, `superseded` drops records that later ones
replace, `migration` reads records of other versions.
"""
