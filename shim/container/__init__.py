"""Application containers: one file for each verb of the CRI, and the pure builders they share."""
