"""Kubernetes' own suite of a node (test/e2e_node): its kubelet, API server and etcd on the server.

launch       starts a run in control groups of its own, and reads its result
__main__     the run, there
groups       the parts of the suite that are run together
machine      what the suite expects of a machine: directories, programs, a kubelet's configuration
units        stands for systemctl and systemd-run, which start the suite's kubelet
images       substitutes of the suite's images
cases        the report of ginkgo as cases
expected     the cases that are expected to fail, with reasons
"""
