"""Image verbs against real engines and registries."""
