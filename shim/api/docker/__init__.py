"""Messages in files of the Docker Engine.

`log_entry_pb2` is written by `proto/generate.py`; what the messages mean is in `proto/shim/api/docker/log_entry.proto`.
"""
