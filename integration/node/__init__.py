"""A throwaway Kubernetes node: engines, plugins, images and a registry, walled off from the machine.

packages     what Debian gives: host tools by apt, daemons unpacked into a cache without installing them
isolation    namespaces of our own, so that the machine's Docker, network and /run stay as they are
engine       one private dockerd
registry     one private image registry
images       the pause and test images, made without any registry
host         the same preparations on the machine itself, for the demo
"""
