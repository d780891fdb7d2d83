# One image for both processes; the chart's command says which. Build it from a base pinned by its digest:
#
#   docker build --build-arg PYTHON_IMAGE=python:3.13-slim@sha256:<digest> -t bowline:0.1.0 .
#
# The argument has no default: a digest goes stale, and a tag alone is not the same image tomorrow. Look it up with
# `docker buildx imagetools inspect python:3.13-slim`.
ARG PYTHON_IMAGE

# --- the wheel of this checkout, built by the pinned tools ---
FROM ${PYTHON_IMAGE} AS wheel
ARG PYTHON_IMAGE
RUN case "$PYTHON_IMAGE" in *@sha256:*) ;; *) echo "PYTHON_IMAGE must carry a digest: NAME@sha256:..." >&2; exit 1 ;; esac
WORKDIR /src
COPY requirements/dev.txt requirements/
RUN pip install --no-cache-dir --require-hashes --only-binary=:all: -r requirements/dev.txt
COPY . .
RUN python -m hatchling build --target wheel

# --- what the image carries: the pinned dependencies and that wheel, nothing that could build ---
FROM ${PYTHON_IMAGE} AS install
COPY requirements/image.txt /
RUN pip install --no-cache-dir --require-hashes --only-binary=:all: --prefix=/install -r /image.txt
COPY --from=wheel /src/dist/*.whl /
RUN pip install --no-cache-dir --no-deps --no-index --prefix=/install /*.whl

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="bowline" org.opencontainers.image.licenses="Apache-2.0"
# The root filesystem is read-only: modules come compiled, nothing is written. The working directory is no place to
# import from.
ENV HOME=/ PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
COPY --from=install /install /usr/local
# The standard library comes without compiled modules in slim images; with a read-only root every start would compile
# it again.
RUN python -c "import compileall, sysconfig; compileall.compile_dir(sysconfig.get_path('stdlib'), quiet=2)"
# By number, so that a cluster can see that it is not root. To add a plugin: FROM this image, USER 0, pip install, USER
# 10000:10000.
USER 10000:10000
WORKDIR /
