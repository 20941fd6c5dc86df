"""The live page: the same page, served by the command on 127.0.0.1, with what changed since.

`document` has the present data by revisions, `journal_tail` follows a journal, `sources` look at a job, of a cluster
`cluster_source` by a `record_copy`, and `feed` asks one source for all readers. `access` decides who is a reader,
`server` speaks HTTP, and `page_app` or `ray_app` answers. docs/adr/0077-live-page.md has the reasons.
"""
