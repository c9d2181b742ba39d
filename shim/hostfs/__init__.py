"""Runs functions on host paths, which may block forever, in a helper process."""
