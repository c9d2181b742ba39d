"""The gRPC server: turns RPCs into calls of domain verbs. No other package knows gRPC."""
