"""A long life in short: many probes, pods, sessions and restarts of Docker, after which nothing may be left.

phases   what is done, scaled
figures  what server and log process took before and after, and what was left (pure)
samples  what there is on the node at one moment
"""
