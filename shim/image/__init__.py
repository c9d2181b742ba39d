"""Images: pull, list, look at and remove them, and how much disk they take."""
