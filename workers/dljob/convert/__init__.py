"""Manifests of other operators as DLJobs: `dljob convert`. Pure: text in, text and reasons out.

In reading order: `source` (a document, and what became of each field), `comments` and `emit` (comments stay with their
field), `meta`, `command`, `pods`, `variables`, `world` (what all kinds have), `raycluster`, `rayjob`, `tensorflow_job`
(kinds), `manifest` (a file, document by document), `report` (the words about it).
"""
