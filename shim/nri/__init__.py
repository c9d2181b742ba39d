"""NRI, the Node Resource Interface: connections with plugins, their events, and their changes of containers."""
