"""Networks of pods: their connections on a node as Docker leaves it, and what is cleaned up after failures."""
