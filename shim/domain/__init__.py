"""Words of the domain that need no collaborator: errors, ids, names, labels, references."""
