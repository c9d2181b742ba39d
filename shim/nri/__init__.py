"""NRI, the interface of plugins that see and change containers: its connections, plugins, and what they ask for."""
