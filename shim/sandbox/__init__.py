"""Pod sandboxes: one file for each verb of the CRI, and what they share: spec, network, dns."""
