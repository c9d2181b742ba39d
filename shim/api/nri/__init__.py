"""Messages of NRI, the interface of plugins that change containers, and of ttrpc, which carries them.

`nri_pb2` and `ttrpc_pb2` are written by `proto/generate.py`; what the messages mean is in `proto/shim/api/nri`.
"""
