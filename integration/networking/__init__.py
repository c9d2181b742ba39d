"""Networks of pods: which connections there are on a node as Docker leaves it, and what is cleaned up after failures."""
