"""PrimeMaster's journal and what others see of it.

In reading order: `journal`, `stores`, `closed_segments`, `code_version`, `job_record`, `setup`,
`timeline`, `cut_short`.
"""
