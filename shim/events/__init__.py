"""GetContainerEvents: what happens to pods and containers, as it happens."""
