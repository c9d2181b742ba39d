"""Images: pull, list, inspect and remove them, and how much disk they take."""
