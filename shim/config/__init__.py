"""Settings of the shim: what they are (model) and where their values come from (load)."""
