"""Tests of pydockershim against real Docker Engines, CNI plugins and an image registry."""
