"""Docker create bodies, built from CRI fields."""
