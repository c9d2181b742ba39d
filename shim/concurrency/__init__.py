"""Threads that share work, wait for each other, or look after what comes later."""
