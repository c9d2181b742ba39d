"""The gRPC server: gRPC in, domain verbs out. Nothing else in the shim knows gRPC."""
