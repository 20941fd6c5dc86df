"""The operator's shell: kopf watches, a work queue, and hands. It decides nothing: `dljob.control` does.

Ray and torch are never imported here.
"""
