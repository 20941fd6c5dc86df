"""Jobs on this machine, or on a Ray joined from it.

session.py     the Ray of a Python program, started and ended    host.py    the process that runs it
connection.py  the way to a job that another process started     views.py   jobs in lists and in detail
"""
