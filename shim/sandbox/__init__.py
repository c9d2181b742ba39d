"""Pod sandboxes: a file for each verb of the CRI, and the functions they share."""
