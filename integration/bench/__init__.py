"""How long CRI calls take, compared to the floor: the same Docker calls and plugin runs without the server.

timings   times of the calls of a round
setup     one engine with images and network, and the server on it
pods      the pod that all sides run
floor     runs that pod directly, one call after the other
timed_pod runs that pod through the server
rounds    runs all sides in turn
load      many pods at once
machine   describes the machine, and measures the server's footprint
figures   medians, ratios and bars, from the timings (pure)
report    the figures as a table and as JSON (pure)
measure   a complete run
images    pulls, and ListImages with many images

Separate benchmarks:

cpu       processor time and memory of the server's processes
reads     reads on a full node
sick      reads during many waiting calls, and restarts on a busy node
logs      the log process
stats     stats and metrics with many pods
streaming exec and port-forward
checkpoints pods moved by a checkpoint
user_namespaces pods in user namespaces, and the cost of the OCI runtime for other pods
"""
