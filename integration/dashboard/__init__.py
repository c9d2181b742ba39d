"""Pictures of the dashboard: `record` has Prometheus watch a server at work, and the rest draws what it recorded."""
