"""What reading Docker's HTTP costs: `shim.engine.http1` beside h11, and the SDK's own client."""
