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

FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY shim shim
RUN python -m venv /opt/pydockershim \
 && /opt/pydockershim/bin/pip install --no-cache-dir .

FROM python:3.11-slim
# The node's CNI plugins run in this container and call iptables.
RUN apt-get update \
 && apt-get install -y --no-install-recommends iptables \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/pydockershim /opt/pydockershim
ENTRYPOINT ["/opt/pydockershim/bin/pydockershim", "serve"]
