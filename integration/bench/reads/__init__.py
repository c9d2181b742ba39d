"""Latency of reads on a full node, the cost of steady polling, and the delay until an exit shows.

lists     the reads of a kubelet with growing numbers of pods
relists   a kubelet that lists every second
exits     the delay from Docker's event to the answers
stops     reads while many containers are in their grace period
figures   the report as bars, table and JSON (pure)
"""
