# Two images out of one lock:
#   operator  what the chart runs, and the init container that brings dljob into user images: neither Ray nor torch
#   runtime   what the pods of a RayCluster run: Ray, and with --build-arg TORCH=1 torch
# BASE is a Debian or Ubuntu with python3 3.11 and its venv module; give it by digest where builds must be repeatable.
ARG BASE=python:3.11-slim-bookworm

# -- what builds, and is in no image
FROM ${BASE} AS tools
ENV UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 PYC_INVALIDATION_MODE=UNCHECKED_HASH
RUN python3 -m venv /tools \
 && /tools/bin/pip install --quiet --no-cache-dir --disable-pip-version-check --only-binary :all: uv==0.13.8 hatchling==1.27.0

# The lock as requirements with hashes. The stages below copy these files, not the lock: an edit of pyproject.toml that
# changes no dependency installs nothing again. The operator runs no command `dljob`, and pods bring their own packages:
# what the command alone needs is left out.
FROM tools AS requirements
ARG TORCH=0
WORKDIR /lock
COPY pyproject.toml uv.lock ./
COPY operator/pyproject.toml operator/
COPY workers/tools/pyproject.toml workers/tools/
RUN export="/tools/bin/uv export --quiet --frozen --no-emit-workspace --no-default-groups --no-annotate --no-header" \
 && $export --extra operator --prune cyclopts --prune rich --output-file operator.txt \
 && $export --extra runtime $(test "$TORCH" != 1 || echo --extra torch) --output-file runtime.txt

FROM tools AS operator-packages
COPY --from=requirements /lock/operator.txt /
RUN --mount=type=cache,target=/root/.cache/uv \
    python3 -m venv --without-pip /opt/dljob \
 && /tools/bin/uv pip install --quiet --python /opt/dljob --only-binary :all: --no-deps --require-hashes -r /operator.txt \
 && rm /opt/dljob/.lock

FROM tools AS runtime-packages
COPY --from=requirements /lock/runtime.txt /
RUN --mount=type=cache,target=/root/.cache/uv \
    python3 -m venv --without-pip /opt/dljob \
 && /tools/bin/uv pip install --quiet --python /opt/dljob --only-binary :all: --no-deps --require-hashes -r /runtime.txt \
 && rm /opt/dljob/.lock

# Our own wheels, dljob's installed alone: the last, thin layer of both images.
FROM tools AS wheels
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY workers workers
COPY operator operator
RUN for folder in . operator workers/tools; do \
      (cd $folder && /tools/bin/python -m hatchling build -t wheel -d /wheels) || exit 1; done

FROM wheels AS wheel
RUN python3 -m venv --without-pip /opt/dljob \
 && /tools/bin/uv pip install --quiet --python /opt/dljob --offline --no-deps /wheels/dljob-*.whl \
 && cd /opt/dljob && rm -rf .lock pyvenv.cfg include lib64 bin/python* bin/[Aa]ctivate*

FROM wheels AS operator-wheel
RUN python3 -m venv --without-pip /opt/dljob \
 && /tools/bin/uv pip install --quiet --python /opt/dljob --offline --no-deps /wheels/dljob-*.whl /wheels/dljob_operator-*.whl \
 && cd /opt/dljob && rm -rf .lock pyvenv.cfg include lib64 bin/dljob bin/python* bin/[Aa]ctivate*

# `ray start` of the runtime image's Python has the hook that lets raylets fork their workers. Not by ENV: an image made
# from this one may start a Ray without dljob, which would fail at the hook. DLJOB_FORKED_WORKERS=0 in a pod turns it off.
FROM wheel AS hooked-wheel
RUN cd /opt/dljob/lib/python3.*/site-packages \
 && hook=dljob.runtime.forked_workers.start_hook \
 && file="$PWD/$(echo $hook | tr . /).py" && test -f "$file" \
 && echo "import os, sys; 'start' in sys.orig_argv and os.path.exists('$file')" \
      "and os.environ.setdefault('RAY_START_HOOK', '$hook.install')" > dljob-ray-start.pth

# -- the images

FROM ${BASE} AS base
# Nothing in an image installs packages, and each user has a name: Ray and torch ask for it.
RUN rm -rf /usr/local/lib/python3.*/site-packages/pip* /usr/local/lib/python3.*/site-packages/setuptools* \
      /usr/local/lib/python3.*/ensurepip/_bundled /usr/local/bin/pip* /usr/share/python-wheels \
 && groupadd --gid 65532 dljob && groupadd --gid 1000 ray \
 && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin dljob \
 && useradd --uid 1000 --gid 1000 --create-home --shell /bin/bash ray
ENV PATH=/opt/dljob/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
LABEL org.opencontainers.image.licenses=Apache-2.0

FROM base AS runtime
LABEL org.opencontainers.image.title="dljob runtime" \
      org.opencontainers.image.description="Ray and dljob: the pods of a DLJob's RayCluster"
COPY --from=runtime-packages /opt/dljob /opt/dljob
COPY --from=hooked-wheel /opt/dljob /opt/dljob
ENV HOME=/home/ray
WORKDIR /home/ray
USER 1000:1000
CMD ["/bin/bash"]

# Runs with a read-only root and an emptyDir at /tmp.
FROM base AS operator
LABEL org.opencontainers.image.title="dljob operator" \
      org.opencontainers.image.description="Turns DLJobs into RayClusters, and brings dljob into user images"
COPY --from=operator-packages /opt/dljob /opt/dljob
COPY --from=operator-wheel /opt/dljob /opt/dljob
# Not installed: the init container of a job that runs dljob.compat unpacks it.
COPY --from=wheels /wheels/dljob_tools-*.whl /opt/dljob-tools/
ENV HOME=/tmp
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["python", "-m", "dljob_operator"]
