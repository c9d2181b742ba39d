"""Machinery that knows no pod: deadlines, locks, threads, files, logging."""
