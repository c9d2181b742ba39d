"""A machine of version 2 control groups where there is none: this one's files under Debian's kernel, emulated."""
