"""`pydockershim install` and `uninstall`: what a node needs beside the program, and the way back."""
