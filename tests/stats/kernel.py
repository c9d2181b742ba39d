"""Recorded files of the kernel."""

NET_DEV = b"\n".join(
    [
        b"Inter-|   Receive                            |  Transmit",
        b" face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier",
        b"    lo: 2408959692 68282 0 0 0 0 0 0 2408959692 68282 0 0 0 0 0 0",
        b"  net1: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
        b"  eth0:4294967296001   111    2    3    0     0          0         0      222     444    5    6    0 0 0 0",
        b"",
    ]
)
"""/proc/<pid>/net/dev of a pod with two interfaces."""
