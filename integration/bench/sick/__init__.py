"""What a sick or busy part of the node takes from the rest of it.

waits     reads while many stops and execs wait
restarts  from the end of one server to the first answers of the next
figures   what was measured and what is promised (pure)
"""
