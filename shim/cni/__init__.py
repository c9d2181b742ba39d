"""Pod networks by CNI: which configuration is in force, and how its plugins are run."""
