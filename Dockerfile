# One image for both processes; the chart's command says which. `make image` builds it from a base pinned by its digest:
#
#   make image PYTHON_IMAGE=python:3.13-slim@sha256:<digest>
#
# The argument has no default: a digest goes stale, and a tag alone is not the same image tomorrow. Look it up with
# `docker buildx imagetools inspect python:3.13-slim`. Two builds of one commit are equal: the files have the time
# SOURCE_DATE_EPOCH, which the builder sets, and compiled modules contain a hash of their source instead of its time.
#
# Behind a proxy: BUILD_OPTIONS="--build-arg=HTTPS_PROXY=http://proxy:3128 --secret=id=pip,src=pip.conf --secret=id=ca,src=ca.pem",
# where pip.conf names the index and `cert = /run/secrets/ca`.
ARG PYTHON_IMAGE

# --- the wheel of this checkout, built by the pinned tool ---
FROM ${PYTHON_IMAGE} AS wheel
ARG PYTHON_IMAGE
ARG SOURCE_DATE_EPOCH=1580601600
RUN case "$PYTHON_IMAGE" in *@sha256:*) ;; *) echo "PYTHON_IMAGE must carry a digest: NAME@sha256:..." >&2; exit 1 ;; esac
WORKDIR /src
COPY requirements/build.txt requirements/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca pip install --no-cache-dir --require-hashes --only-binary=:all: -r requirements/build.txt
COPY . .
RUN python -m hatchling build --target wheel

# --- what the image carries: the pinned dependencies and that wheel, nothing that could build ---
FROM ${PYTHON_IMAGE} AS install
COPY requirements/runtime.txt /
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca pip install --no-cache-dir --no-compile --require-hashes --only-binary=:all: --prefix=/install -r /runtime.txt
# The locked versions, for images with plugins (examples/plugins/Dockerfile); without the hashes, which a folder has not.
RUN mkdir -p /install/etc/bowline && sed -n 's/^\([a-z][^ ]*==[^ ]*\).*/\1/p' /runtime.txt > /install/etc/bowline/constraints.txt
COPY --from=wheel /src/dist/*.whl /
RUN pip install --no-cache-dir --no-compile --no-deps --no-index --prefix=/install /*.whl

FROM ${PYTHON_IMAGE}
ARG VERSION=
ARG REVISION=
ARG SOURCE=
LABEL org.opencontainers.image.title="bowline" org.opencontainers.image.licenses="Apache-2.0" \
  org.opencontainers.image.version="$VERSION" org.opencontainers.image.revision="$REVISION" \
  org.opencontainers.image.source="$SOURCE"
# The root filesystem is read-only: modules come compiled, nothing is written. The working directory is no place to
# import from.
ENV HOME=/ PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
COPY --from=install /install /usr/local
# Also the standard library, which has no compiled modules in slim images; with a read-only root every start would
# compile it again.
RUN PYTHONHASHSEED=0 python -c "import compileall, py_compile, sysconfig; compileall.compile_dir(sysconfig.get_path('stdlib'), quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"
# By number, so that a cluster can see that it is not root. To add a plugin: examples/plugins/Dockerfile.
USER 10000:10000
WORKDIR /
