"""The cost of reading Docker's HTTP: `shim.engine.http1` compared to h11 and to the SDK's client."""
