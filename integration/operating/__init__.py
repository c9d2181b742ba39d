"""What is installed beside the server, by the programs that read it."""
