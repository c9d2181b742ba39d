"""Wire formats, generated from `proto/`: the CRI, and what Docker stores of output."""
