"""Pictures of the dashboard: `record` runs Prometheus on a busy server, and the other modules draw its data."""
