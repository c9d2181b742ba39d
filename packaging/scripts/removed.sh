# Run by the package manager after the files were removed.
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
