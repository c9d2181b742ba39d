"""Conformance: programs that others have written, run against the server.

`make conformance BIN=dir` runs what it finds in a directory or on PATH and downloads none of it.

binaries     which programs there are, their versions, and what is left out for one that is missing
plan         the runs that the options ask for
critest      the conformance tests of the CRI, whole
cluster      a control plane, and a kubelet that has our socket
scenarios    what a user of a cluster does, a function for each behaviour
machine      what a run takes place on
results      what a run has found, as JSON; kept in results/
page         docs/compatibility.md, made from those files
"""
