"""Soak test: many probes, pods, sessions and restarts of Docker, after which nothing may be left behind.

phases   the work, scaled
figures  the sizes of server and log process before and after, and the leftovers (pure)
samples  the processes of the node at one moment
"""
