"""NRI, the Node Resource Interface: connections to plugins, events for plugins, and their changes to containers."""
