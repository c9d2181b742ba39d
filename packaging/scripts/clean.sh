find /usr/lib/pydockershim -name __pycache__ -type d -prune -exec rm -rf {} +
