# ruff: noqa: D102, N802 - the CRI names and documents the methods
"""ImageService: unpacks requests, calls the verbs of the domain and wraps their results. It decides nothing."""

from collections.abc import Iterator

from grpc import ServicerContext

from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc
from shim.cri import validate
from shim.cri.chunks import chunks
from shim.image.fs_info import image_fs_info
from shim.image.list import list_images
from shim.image.pull import pull_image
from shim.image.remove import remove_image
from shim.image.status import image_status
from shim.runtime import Runtime


class ImageService(api_pb2_grpc.ImageServiceServicer):
    """Images and their disk usage."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt

    def ListImages(self, request: pb.ListImagesRequest, _context: ServicerContext) -> pb.ListImagesResponse:
        validate.well_formed(request)
        return pb.ListImagesResponse(images=list_images(self._rt, filter=request.filter))

    def StreamImages(
        self, request: pb.StreamImagesRequest, _context: ServicerContext
    ) -> Iterator[pb.StreamImagesResponse]:
        validate.well_formed(request)
        for some in chunks(list_images(self._rt, filter=request.filter)):
            yield pb.StreamImagesResponse(images=some)

    def ImageStatus(self, request: pb.ImageStatusRequest, _context: ServicerContext) -> pb.ImageStatusResponse:
        validate.image(request)
        return image_status(self._rt, image=request.image, verbose=request.verbose)

    def PullImage(self, request: pb.PullImageRequest, _context: ServicerContext) -> pb.PullImageResponse:
        validate.image(request)
        auth = request.auth if request.HasField("auth") else None
        return pb.PullImageResponse(image_ref=pull_image(self._rt, image=request.image, auth=auth))

    def RemoveImage(self, request: pb.RemoveImageRequest, _context: ServicerContext) -> pb.RemoveImageResponse:
        validate.image(request)
        remove_image(self._rt, image=request.image)
        return pb.RemoveImageResponse()

    def ImageFsInfo(self, _request: pb.ImageFsInfoRequest, _context: ServicerContext) -> pb.ImageFsInfoResponse:
        return image_fs_info(self._rt)
