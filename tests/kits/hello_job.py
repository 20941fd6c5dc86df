"""A job of two ranks, as a user would write it."""

JOB = """\
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: hello}
spec:
  roles:
  - name: worker
    replicas: 2
    entrypoint: {class: hello.main}
"""
