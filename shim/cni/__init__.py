"""Pod networks by CNI: the configuration in force, and runs of its plugins."""
