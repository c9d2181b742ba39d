"""How long reads take on a full node, what it costs to be asked all the time, and how soon an exit shows.

lists     the reads of a kubelet with more and more pods
relists   a kubelet that lists every second, for a while
exits     from Docker's own event to the answers
stops     reads while many containers are in their grace period
figures   the report: bars, table, JSON (pure)
"""
