"""A throwaway Kubernetes node: engines, plugins, images and a registry, isolated from the machine.

packages     Debian packages: host tools installed by apt, daemons unpacked into a cache
isolation    namespaces that keep the machine's Docker, network and /run unchanged
engine       a private dockerd
registry     a private image registry
images       the pause and test images, built without a registry
host         the same setup on the machine itself, for the demo
"""
