# Run by dpkg before the files are removed, not on an upgrade. Configuration stays until a purge.
/usr/bin/pydockershim uninstall --force --keep-configuration
