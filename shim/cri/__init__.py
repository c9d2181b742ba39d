"""The CRI door: gRPC in, domain verbs out. Nothing else in the shim knows gRPC."""
