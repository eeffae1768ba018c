# The environment of `make repro` as an image:
#   docker build --tag singleshot .
#   docker run --rm --shm-size=4g singleshot doctor
#   docker run --name run --shm-size=4g --entrypoint dvc singleshot repro
#   docker start --attach run             # after an interruption: goes on from the cells it has
#   docker cp run:/singleshot/report .
# Ray keeps its objects in /dev/shm, of which Docker gives a container 64 MB unless told otherwise.
ARG PYTHON_IMAGE=python:3.11-slim
FROM ${PYTHON_IMAGE}

# PyPI's PyTorch brings CUDA along, some 3 GB. Without a GPU:
#   --build-arg PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG PIP_EXTRA_INDEX_URL=
# The user's own, where a folder of the host is mounted: --build-arg UID=$(id -u)
ARG UID=1000

ENV PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    DVC_NO_ANALYTICS=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    MLFLOW_DISABLE_TELEMETRY=true

# Ray and DVC need a home to write in, for a cluster's token and for their own caches.
RUN useradd --create-home --uid "${UID}" singleshot \
    && install --directory --owner singleshot /singleshot
WORKDIR /singleshot

# Before the code, which changes more often: a build after an edit takes this layer from the cache.
COPY requirements.lock ./
RUN python -m venv /opt/venv \
    && pip install --no-cache-dir --disable-pip-version-check --requirement requirements.lock

COPY --chown=singleshot . ./
USER ${UID}
# An image has no .git (.dockerignore), and DVC stops with 'not a git repository' unless told that this is meant.
RUN dvc config core.no_scm true

ENTRYPOINT ["python", "-m", "pipelines"]
CMD ["--help"]
