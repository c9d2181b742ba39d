"""How long the calls of the CRI take, beside the floor: the same Docker calls and plugin runs without the server.

timings   times of the calls of one round
setup     one engine with images and network, and the server on it
pods      the pod that both sides make
floor     that pod made directly, one call after the other
timed_pod that pod made through the server
rounds    both in turn
load      many pods at once
machine   what is measured on, and what the server takes of it
figures   medians, ratios and bars, from the timings (pure)
report    those as a table for people and as JSON (pure)
measure   one run of all of it
images    pulls, and the list of a node that has many images

By themselves:

cpu       processor time and memory of the server's own processes
reads     reads on a full node
sick      reads beside many waits, and restarts of a busy node
logs      the log process
stats     stats and metrics with many pods
streaming exec and port-forward
checkpoints pods moved by a checkpoint
user_namespaces pods in user namespaces, and others beside the OCI runtime
"""
