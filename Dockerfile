# One image for every role of a cluster: Ray head, Ray worker, MLflow server and driver. See docs/cluster.md.
#   docker build --tag singleshot:cpu .
#   docker build --tag singleshot:cuda --build-arg DEVICE=cuda .
#   docker run --rm --shm-size=4g singleshot:cpu python -m pipelines doctor
# Bases are pinned by version. Add a digest (`docker buildx imagetools inspect`) where a tag must not move.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# cpu or cuda. PyPI's PyTorch brings CUDA along, some 3 GB; there is one without in an index of its own.
ARG DEVICE=cpu
# That index, as uv calls it. Empty where pip's index has a PyTorch without CUDA.
ARG CPU_BACKEND=cpu
WORKDIR /build
COPY requirements.lock ./
COPY tasks/__init__.py tasks/errors.py tasks/uv.py tasks/
# An index of your own, credentials and all, stays out of the image: --secret id=pip,src=$HOME/.config/pip/pip.conf
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    case "${DEVICE}" in \
      cpu) set -- ${CPU_BACKEND:+--torch-backend "${CPU_BACKEND}"} ;; \
      cuda) set -- ;; \
      *) echo "DEVICE is ${DEVICE}, neither cpu nor cuda" >&2; exit 1 ;; \
    esac \
    && python -m venv /opt/venv \
    && /opt/venv/bin/python -m tasks.uv pip install --no-cache --compile-bytecode "$@" --requirements requirements.lock

FROM ${PYTHON_IMAGE}
# The driver's own, for the checkout that is mounted into it: --build-arg UID=$(id -u)
ARG UID=1000

# git for DVC and provenance, g++ for torch.compile, wget for health checks (KubeRay's as well), ssh and rsync for
# `ray up`. DL3008 asks for their versions; Debian drops those of an older point release.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ git openssh-client rsync wget \
    && rm -rf /var/lib/apt/lists/*

# `ray up` runs commands in login shells, whose PATH is /etc/profile's, and looks for HOME among the variables.
RUN useradd --create-home --uid "${UID}" --shell /bin/bash singleshot \
    && install --directory --owner singleshot /singleshot \
    && echo "PATH=/opt/venv/bin:\$PATH" > /etc/profile.d/venv.sh \
    && git config --system --add safe.directory /singleshot
COPY --from=build /opt/venv /opt/venv

# With RAY_AUTH_MODE a Ray node without the cluster's token doesn't start, rather than let everyone in.
ENV HOME=/home/singleshot \
    PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    DVC_NO_ANALYTICS=1 \
    RAY_AUTH_MODE=token \
    RAY_USAGE_STATS_ENABLED=0 \
    MLFLOW_DISABLE_TELEMETRY=true

WORKDIR /singleshot
COPY --chown=singleshot . ./
USER ${UID}
# An image has no .git (.dockerignore), and DVC stops with 'not a git repository' unless told that this is meant.
RUN dvc config core.no_scm true

# Whom to ask depends on the role: compose.yaml sets HEALTH_URL. Without, what runs is healthy.
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s \
    CMD ["sh", "-c", "test -z \"$HEALTH_URL\" || wget --quiet --tries=1 --timeout=5 --spider \"$HEALTH_URL\""]
CMD ["python", "-m", "pipelines", "--help"]
