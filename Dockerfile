# One image for every role of a cluster: Ray head, Ray worker, MLflow server and driver. See docs/cluster.md.
#   docker build --tag singleshot:cpu .
#   docker build --tag singleshot:cuda --build-arg DEVICE=cuda .
#   docker run --rm --shm-size=4g singleshot:cpu python -m pipelines doctor
# Bases are pinned by version. Add a digest (`docker buildx imagetools inspect`) where a tag must not move.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# cpu or cuda. PyPI's PyTorch includes CUDA, some 3 GB; another index has a PyTorch without CUDA.
ARG DEVICE=cpu
# uv's name for that other index. Empty if pip's index has a PyTorch without CUDA.
ARG CPU_BACKEND=cpu
WORKDIR /build
COPY requirements.lock ./
COPY singleshot/__init__.py singleshot/
COPY singleshot/io/__init__.py singleshot/io/uv.py singleshot/io/
# Your own index and its credentials stay out of the image with --secret id=pip,src=$HOME/.config/pip/pip.conf
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    case "${DEVICE}" in \
      cpu) set -- ${CPU_BACKEND:+--torch-backend "${CPU_BACKEND}"} ;; \
      cuda) set -- ;; \
      *) echo "DEVICE is ${DEVICE}, neither cpu nor cuda" >&2; exit 1 ;; \
    esac \
    && python -m venv /opt/venv \
    && sed -n "/^uv==/,/# via/p" requirements.lock > uv.lock \
    && /opt/venv/bin/pip install --quiet --require-hashes -r uv.lock \
    && /opt/venv/bin/python -m singleshot.io.uv pip install --no-cache --compile-bytecode "$@" --requirements requirements.lock

FROM ${PYTHON_IMAGE}
# The id of the user who owns the checkout that is mounted into the driver: --build-arg UID=$(id -u)
ARG UID=1000

# git for DVC and provenance, g++ for torch.compile, wget for health checks (KubeRay's as well), ssh and rsync for
# `ray up`. DL3008 asks for pinned versions, but Debian removes the versions of older point releases.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ git openssh-client rsync wget \
    && rm -rf /var/lib/apt/lists/*

# `ray up` runs commands in login shells, which get their PATH from /etc/profile, and reads the variable HOME.
# --non-unique, as root's checkout has UID 0, which the base image's root has, too.
RUN useradd --create-home --non-unique --uid "${UID}" --shell /bin/bash singleshot \
    && install --directory --owner singleshot /singleshot \
    && echo "PATH=/opt/venv/bin:\$PATH" > /etc/profile.d/venv.sh \
    && git config --system --add safe.directory /singleshot
COPY --from=build /opt/venv /opt/venv

# DVC_SITE_CACHE_DIR: the checkout that is mounted into the driver names its own place on the host in .dvc/config.local.
# With RAY_AUTH_MODE, a Ray node without the cluster's token doesn't start, instead of letting everyone in.
ENV HOME=/home/singleshot \
    PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    DVC_NO_ANALYTICS=1 \
    DVC_SITE_CACHE_DIR=/singleshot/.dvc-site \
    RAY_AUTH_MODE=token \
    RAY_USAGE_STATS_ENABLED=0 \
    MLFLOW_DISABLE_TELEMETRY=true

WORKDIR /singleshot
COPY --chown=singleshot . ./
USER ${UID}
# The image has no .git (.dockerignore), and DVC would stop with 'not a git repository' without this setting.
RUN dvc config core.no_scm true

# The address to check depends on the role: compose.yaml sets HEALTH_URL. Without it, a container counts as healthy.
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s \
    CMD ["sh", "-c", "test -z \"$HEALTH_URL\" || wget --quiet --tries=1 --timeout=5 --spider \"$HEALTH_URL\""]
CMD ["python", "-m", "pipelines", "--help"]
