# Run by the package manager before the files are removed, not on an upgrade.
/usr/bin/pydockershim uninstall --force
