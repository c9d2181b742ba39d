"""Networks of pods: connections on a node with Docker's firewall rules, and the cleanup after failures."""
