"""Chaos: pods come and go while random parts of the node fail. Each round ends with a check of invariants.

plan      the schedule that a seed gives: which pods, which faults, when (pure)
target    a node: an engine with live-restore, the server, and the parts that can fail
link      a proxy to Docker that can cut, delay or truncate connections
clock     a wall clock for the server alone, which can jump
faults    the faults, by name
pods      the pods, and the kubelet's knowledge of them
kubelet   brings pods up and takes them down as a kubelet does, until it succeeds
events    the stream of container events; checks that each step came once and in order
logs      checks that a container's log is complete and in order
invariants the conditions that must hold once all faults have ended
rounds    runs the rounds and collects violations

`make chaos ARGS="--minutes N --seed S"` runs any number of rounds; the tests run a few short ones.
"""
