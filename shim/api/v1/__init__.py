"""CRI v1: messages in `api_pb2`, services in `api_pb2_grpc`.

Everything else in this package is written by `proto/generate.py`; what the messages mean is in
`proto/shim/api/v1/api.proto`.
"""

CRI_VERSION = "v1"
"""What the kubelet insists on."""
