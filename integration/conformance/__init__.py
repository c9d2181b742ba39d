"""Conformance: upstream's test programs and Kubernetes, run against the server.

`make conformance BIN=dir` runs the programs that it finds in a directory or on PATH; it downloads none.

binaries     the available programs and their versions
plan         the runs that the options ask for
critest      the conformance tests of the CRI
cluster      a control plane, and a kubelet with the server's socket
node_e2e     Kubernetes' own suite of a node
ginkgo       runs programs of the test framework ginkgo, and reads their reports
scenarios    the behaviours that a user of a cluster relies on, a function for each
machine      describes the machine of a run
results      the results of a run as JSON; the files are in results/
page         docs/compatibility.md, generated from those files
"""
