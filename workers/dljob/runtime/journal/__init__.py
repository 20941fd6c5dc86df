"""PrimeMaster's journal, and the files and keys by which others see a job.

In reading order: `journal`, `stores`, `closed_segments`, `code_version`, `job_record`, `first_start`, `setup`,
`event_file`, `timeline`, `sample_rows`, `samples`, `cpu_windows`, `resource_use`, `kept_record`, `record_files`,
`cut_short`.
"""
