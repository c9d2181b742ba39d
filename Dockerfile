# Two images. BuildKit makes only the one that is asked for; before Docker 23, it needs DOCKER_BUILDKIT=1.
#
# pydockershim as an image, to run on a node whose Docker Engine it drives:
#
#   docker build -t pydockershim .
#   docker run -d --name pydockershim --restart always --stop-timeout 260 \
#     --privileged --network host --pid host --cgroupns host \
#     -v /run:/run:rshared -v /var/lib:/var/lib:rshared -v /var/log/pods:/var/log/pods -v /dev:/dev \
#     -v /etc/cni:/etc/cni:ro -v /opt/cni/bin:/opt/cni/bin:ro -v /usr/lib/cni:/usr/lib/cni:ro \
#     -v /sys/fs/cgroup:/sys/fs/cgroup -v /sys/kernel/security:/sys/kernel/security:ro pydockershim
#
# The paths are the same inside and outside, because the kubelet, Docker and the CNI plugins all name them. /run is
# shared so that a network namespace pinned here is seen by the node. Docker's socket comes with it; never mount it a
# second time: the mount would appear on the node, and dockerd could not replace its socket at its next start. Devices
# are looked up in /dev, also disks that come later. A hostPath volume outside of these directories is looked up, and
# made when it is missing, in this image instead of on the node: mount those that pods use, too. The time to stop is the
# unit's, so that a CNI plugin under way can finish.
#
# A node of kind (docs/kind.md), whose pods are run by a Docker and a pydockershim inside it:
#
#   make kind-image
#
# It is the first target: Docker's older builder goes through this file from its top, and ends with the target.

ARG NODE=kindest/node:v1.36.2
FROM ${NODE} AS kind-node
# What the node image has already is not installed again: with all of it, no network is needed. The node keeps its own
# containerd, with its configuration.
RUN if ! command -v dockerd || ! python3 -c 'import ensurepip'; then \
      apt-get update \
      && apt-get install -y --no-install-recommends -o Dpkg::Options::=--force-confold \
           docker.io python3-venv $(apt-cache --names-only search '^docker-cli$' | cut -d ' ' -f 1) \
      && rm -rf /var/lib/apt/lists/*; \
    fi
# Wheels that are there are used, and with PIP_NO_INDEX=1 no others.
ARG PIP_NO_INDEX
COPY build/kind/wheels /opt/wheels
RUN python3 -m venv /opt/pydockershim \
 && /opt/pydockershim/bin/pip install --no-cache-dir --find-links /opt/wheels /opt/wheels/pydockershim-*.whl \
 && ln -s /opt/pydockershim/bin/pydockershim /usr/local/bin/pydockershim \
 && mkdir -p /usr/libexec/pydockershim \
 && /opt/pydockershim/bin/python -c \
      'import sys; from shim.install.layout import oci_runtime; sys.stdout.buffer.write(oci_runtime().content)' \
      >/usr/libexec/pydockershim/oci-runtime \
 && chmod 755 /usr/libexec/pydockershim/oci-runtime \
 && rm -r /opt/wheels
COPY packaging/systemd/pydockershim.service /etc/systemd/system/
COPY packaging/kind/files /
# The pause image is the one that the node has.
RUN mkdir -p /etc/pydockershim/conf.d \
 && containerd config dump \
    | sed -n "s/^ *\(sandbox\|sandbox_image\) *= *['\"]\([^'\"]*\)['\"] *$/pod_infra_container_image = \"\2\"/p" \
    | head -n 1 >/etc/pydockershim/config.toml \
 && systemctl enable docker.service docker.socket pydockershim.service \
      kind-images.service registry-notice.path

FROM python:3.11-slim AS build
# Where libraries are taken from: with a directory of wheels in the base image no network is needed.
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY shim shim
# shim/share links to these.
COPY packaging/systemd packaging/systemd
COPY cni_conf_examples cni_conf_examples
RUN python -m venv /opt/pydockershim \
 && /opt/pydockershim/bin/pip install --no-cache-dir .

FROM python:3.11-slim
# The node's CNI plugins run in this container and call iptables.
RUN if ! command -v iptables; then \
      apt-get update \
      && apt-get install -y --no-install-recommends iptables \
      && rm -rf /var/lib/apt/lists/*; \
    fi
COPY --from=build /opt/pydockershim /opt/pydockershim
ENTRYPOINT ["/opt/pydockershim/bin/pydockershim", "serve"]
