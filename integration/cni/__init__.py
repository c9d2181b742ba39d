"""CNI with the plugins that nodes run."""
