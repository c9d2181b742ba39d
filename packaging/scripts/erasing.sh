# Run by rpm before the files are removed, not on an upgrade. It knows no purge, so all of the installation is undone.
/usr/bin/pydockershim uninstall --force
