"""Network namespaces of pods: pinned on a file, entered by throwaway threads, changed by netlink."""
