"""State on disk that must survive a restart of the server and that Docker does not have."""
