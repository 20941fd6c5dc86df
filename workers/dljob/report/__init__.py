"""Reports of a job, live or long gone: its page, its trace, its state at a moment.

`job_folder` loads a job's record from its folder, `page_data` computes from it all that the page shows, and `page`
joins this data with the script and style of `assets` in one file. `docs/adr/0075-report-page.md` has the format.
"""
