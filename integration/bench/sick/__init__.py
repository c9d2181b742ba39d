"""How a failing or busy part of the node affects the rest.

waits     reads while many stops and execs are pending
restarts  the time from the end of a server to the first answers of its successor
figures   the figures and the promised limits (pure)
"""
