"""Types and functions without collaborators: errors, ids, names, labels, references."""
