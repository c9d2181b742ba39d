"""`pydockershim doctor`: what of this node works, what does not, and what to do about it. It changes nothing."""
