# Run by the package manager when the files of this version are there; also on an upgrade.
# Compiled files are made here, for the Python of this node, and removed again below.
/usr/lib/pydockershim/bin/python3 -I -m compileall -qq -f /usr/lib/pydockershim || true
start=
# A machine that must not start daemons, such as an image in the making, says so by this program.
if [ -x /usr/sbin/policy-rc.d ] && ! /usr/sbin/policy-rc.d pydockershim start; then
    start=--no-start
fi
/usr/bin/pydockershim install --from-package $start
