"""All fuzzers."""

from tests.fuzz import checkpoints, cni, credentials, docker, images, kernel, logs, nri, state, streaming
from tests.fuzz.target import Target

TARGETS: tuple[Target, ...] = (
    *docker.TARGETS,
    *logs.TARGETS,
    *cni.TARGETS,
    *credentials.TARGETS,
    *state.TARGETS,
    *images.TARGETS,
    *checkpoints.TARGETS,
    *kernel.TARGETS,
    *streaming.TARGETS,
    *nri.TARGETS,
)
