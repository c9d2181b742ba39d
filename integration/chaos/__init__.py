"""Pods come and go while parts of the node fail at random, and what must be true is checked after every round.

plan      the schedule of a seed: which pods, which faults, when (pure)
target    one node: an engine with live-restore, the server, and what can fail around them
link      the way to Docker, which can be cut, slow or torn
clock     a wall clock of the server's own, which can jump
faults    what can happen to the node, by name
pods      the pods, and what the kubelet knows of them
kubelet   brings pods up and takes them down as a kubelet does, until it has succeeded
events    the stream of container events, and whether each step came once and in order
logs      whether a container's log has everything, once and in order
invariants what must be true when nothing fails any more
rounds    one round after the other, and what they found

`make chaos ARGS="--minutes N --seed S"` runs it for as long as wanted; a few short rounds are part of the tests.
"""
