"""The wire format of the CRI, generated from `proto/`."""
