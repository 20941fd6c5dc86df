"""Reports of a job, live or long gone: its page, its trace, its state at a moment.

`job_folder` loads a job's record from its folder, with `journal_files` for its journal, which `history` folds.
`page_data` computes from it all that the page shows: `lanes`, `incidents`, `placement`, `series` of samples, and by
`spec.redaction` the spec. `trace_events` draws the same data for Perfetto, and
`page` joins this data with the script and style of `assets` in one file. `docs/adr/0075-report-page.md` has the format.

`replay` rebuilds the states behind the journal's events, and `replay_views` shows them. `record` reads a job's pace and
faults off these states, and `what_if` predicts its goodput under another rule from them.
"""
