"""Tests of what users install, built here and installed as they do."""
