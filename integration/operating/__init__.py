"""Files installed besides the server, tested with the programs that read them."""
