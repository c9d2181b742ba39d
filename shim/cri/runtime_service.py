# ruff: noqa: D102, N802 - the CRI names and documents the methods
"""RuntimeService: unpacks requests, calls the verbs of the domain and wraps their results. It decides nothing.

`shim.cri.interceptors` answers any other RPC with UNIMPLEMENTED and its name.
"""

from collections.abc import Iterator

from grpc import ServicerContext

from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc
from shim.container.attach import attach_url
from shim.container.checkpoint import checkpoint_container
from shim.container.create import create_container
from shim.container.exec import exec_url
from shim.container.exec_sync import exec_sync
from shim.container.list import list_containers
from shim.container.remove import remove_container
from shim.container.reopen_log import reopen_container_log
from shim.container.start import start_container
from shim.container.status import container_status
from shim.container.stop import stop_container
from shim.container.update import update_container_resources
from shim.cri import validate
from shim.cri.chunks import chunks
from shim.node.container_events import container_events, events_first
from shim.node.runtime_config import runtime_config
from shim.node.status import status
from shim.node.update_runtime_config import update_runtime_config
from shim.node.version import version
from shim.runtime import Runtime
from shim.sandbox.checkpoint import checkpoint_pod
from shim.sandbox.list import list_pod_sandbox
from shim.sandbox.portforward import port_forward_url
from shim.sandbox.remove import remove_pod_sandbox
from shim.sandbox.restore import restore_pod
from shim.sandbox.run import run_pod_sandbox
from shim.sandbox.status import pod_sandbox_status
from shim.sandbox.stop import stop_pod_sandbox
from shim.sandbox.update import update_pod_sandbox_resources
from shim.stats.containers import container_stats, list_container_stats
from shim.stats.metrics import list_metric_descriptors, list_pod_sandbox_metrics
from shim.stats.sandboxes import list_pod_sandbox_stats, pod_sandbox_stats


class RuntimeService(api_pb2_grpc.RuntimeServiceServicer):
    """Pod sandboxes, containers and the node."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt

    def Version(self, _request: pb.VersionRequest, _context: ServicerContext) -> pb.VersionResponse:
        return version(self._rt)

    def Status(self, request: pb.StatusRequest, _context: ServicerContext) -> pb.StatusResponse:
        return status(self._rt, verbose=request.verbose)

    def RuntimeConfig(self, _request: pb.RuntimeConfigRequest, _context: ServicerContext) -> pb.RuntimeConfigResponse:
        return runtime_config(self._rt)

    def UpdateRuntimeConfig(
        self, request: pb.UpdateRuntimeConfigRequest, _context: ServicerContext
    ) -> pb.UpdateRuntimeConfigResponse:
        validate.well_formed(request)
        update_runtime_config(self._rt, network_config=request.runtime_config.network_config)
        return pb.UpdateRuntimeConfigResponse()

    def RunPodSandbox(self, request: pb.RunPodSandboxRequest, _context: ServicerContext) -> pb.RunPodSandboxResponse:
        validate.run_pod_sandbox(request)
        with events_first(self._rt):
            sandbox_id = run_pod_sandbox(self._rt, config=request.config, runtime_handler=request.runtime_handler)
        return pb.RunPodSandboxResponse(pod_sandbox_id=sandbox_id)

    def StopPodSandbox(self, request: pb.StopPodSandboxRequest, _context: ServicerContext) -> pb.StopPodSandboxResponse:
        validate.pod_sandbox_id(request)
        with events_first(self._rt):
            stop_pod_sandbox(self._rt, sandbox_id=request.pod_sandbox_id)
        return pb.StopPodSandboxResponse()

    def RemovePodSandbox(
        self, request: pb.RemovePodSandboxRequest, _context: ServicerContext
    ) -> pb.RemovePodSandboxResponse:
        validate.pod_sandbox_id(request)
        with events_first(self._rt):
            remove_pod_sandbox(self._rt, sandbox_id=request.pod_sandbox_id)
        return pb.RemovePodSandboxResponse()

    def PodSandboxStatus(
        self, request: pb.PodSandboxStatusRequest, _context: ServicerContext
    ) -> pb.PodSandboxStatusResponse:
        validate.pod_sandbox_id(request)
        return pod_sandbox_status(self._rt, sandbox_id=request.pod_sandbox_id, verbose=request.verbose)

    def ListPodSandbox(self, request: pb.ListPodSandboxRequest, _context: ServicerContext) -> pb.ListPodSandboxResponse:
        validate.well_formed(request)
        return pb.ListPodSandboxResponse(items=list_pod_sandbox(self._rt, filter=request.filter))

    def StreamPodSandboxes(
        self, request: pb.StreamPodSandboxesRequest, _context: ServicerContext
    ) -> Iterator[pb.StreamPodSandboxesResponse]:
        validate.well_formed(request)
        for some in chunks(list_pod_sandbox(self._rt, filter=request.filter)):
            yield pb.StreamPodSandboxesResponse(pod_sandboxes=some)

    def UpdatePodSandboxResources(
        self, request: pb.UpdatePodSandboxResourcesRequest, _context: ServicerContext
    ) -> pb.UpdatePodSandboxResourcesResponse:
        validate.update_pod_sandbox_resources(request)
        update_pod_sandbox_resources(self._rt, request=request)
        return pb.UpdatePodSandboxResourcesResponse()

    def GetContainerEvents(
        self, _request: pb.GetEventsRequest, _context: ServicerContext
    ) -> Iterator[pb.ContainerEventResponse]:
        return container_events(self._rt)

    def CreateContainer(
        self, request: pb.CreateContainerRequest, _context: ServicerContext
    ) -> pb.CreateContainerResponse:
        validate.create_container(request)
        with events_first(self._rt):
            container_id = create_container(
                self._rt,
                sandbox_id=request.pod_sandbox_id,
                config=request.config,
                sandbox_config=request.sandbox_config,
            )
        return pb.CreateContainerResponse(container_id=container_id)

    def StartContainer(self, request: pb.StartContainerRequest, _context: ServicerContext) -> pb.StartContainerResponse:
        validate.container_id(request)
        with events_first(self._rt):
            start_container(self._rt, container_id=request.container_id)
        return pb.StartContainerResponse()

    def StopContainer(self, request: pb.StopContainerRequest, _context: ServicerContext) -> pb.StopContainerResponse:
        validate.stop_container(request)
        with events_first(self._rt):
            stop_container(self._rt, container_id=request.container_id, timeout=request.timeout)
        return pb.StopContainerResponse()

    def RemoveContainer(
        self, request: pb.RemoveContainerRequest, _context: ServicerContext
    ) -> pb.RemoveContainerResponse:
        validate.container_id(request)
        with events_first(self._rt):
            remove_container(self._rt, container_id=request.container_id)
        return pb.RemoveContainerResponse()

    def ListContainers(self, request: pb.ListContainersRequest, _context: ServicerContext) -> pb.ListContainersResponse:
        validate.well_formed(request)
        return pb.ListContainersResponse(containers=list_containers(self._rt, filter=request.filter))

    def StreamContainers(
        self, request: pb.StreamContainersRequest, _context: ServicerContext
    ) -> Iterator[pb.StreamContainersResponse]:
        validate.well_formed(request)
        for some in chunks(list_containers(self._rt, filter=request.filter)):
            yield pb.StreamContainersResponse(containers=some)

    def ContainerStatus(
        self, request: pb.ContainerStatusRequest, _context: ServicerContext
    ) -> pb.ContainerStatusResponse:
        validate.container_id(request)
        return container_status(self._rt, container_id=request.container_id, verbose=request.verbose)

    def ReopenContainerLog(
        self, request: pb.ReopenContainerLogRequest, _context: ServicerContext
    ) -> pb.ReopenContainerLogResponse:
        validate.container_id(request)
        reopen_container_log(self._rt, container_id=request.container_id)
        return pb.ReopenContainerLogResponse()

    def UpdateContainerResources(
        self, request: pb.UpdateContainerResourcesRequest, _context: ServicerContext
    ) -> pb.UpdateContainerResourcesResponse:
        validate.update_container_resources(request)
        update_container_resources(self._rt, container_id=request.container_id, linux=request.linux)
        return pb.UpdateContainerResourcesResponse()

    def CheckpointContainer(
        self, request: pb.CheckpointContainerRequest, _context: ServicerContext
    ) -> pb.CheckpointContainerResponse:
        validate.checkpoint_container(request)
        checkpoint_container(
            self._rt, container_id=request.container_id, location=request.location, timeout=request.timeout
        )
        return pb.CheckpointContainerResponse()

    def CheckpointPod(self, request: pb.CheckpointPodRequest, _context: ServicerContext) -> pb.CheckpointPodResponse:
        """Write the state of running containers of a pod, which go on, to a directory."""
        validate.checkpoint_pod(request)
        checkpoint_pod(
            self._rt,
            sandbox_id=request.pod_sandbox_id,
            output_path=request.output_path,
            container_ids=request.container_ids,
        )
        return pb.CheckpointPodResponse()

    def RestorePod(self, request: pb.RestorePodRequest, _context: ServicerContext) -> pb.RestorePodResponse:
        """Make a pod sandbox and containers that go on from a checkpoint."""
        refuse_connections = validate.restore_pod(request)
        with events_first(self._rt):
            made = restore_pod(
                self._rt,
                checkpoint_path=request.checkpoint_path,
                config=request.config,
                runtime_handler=request.runtime_handler,
                container_configs=request.container_configs,
                refuse_connections=refuse_connections,
            )
        restored = [pb.RestoredContainer(name=name, container_id=each) for name, each in made.containers.items()]
        return pb.RestorePodResponse(pod_sandbox_id=made.sandbox, restored_containers=restored)

    def ExecSync(self, request: pb.ExecSyncRequest, _context: ServicerContext) -> pb.ExecSyncResponse:
        validate.exec_sync(request)
        return exec_sync(self._rt, container_id=request.container_id, cmd=request.cmd, timeout=request.timeout)

    def Exec(self, request: pb.ExecRequest, _context: ServicerContext) -> pb.ExecResponse:
        validate.exec_(request)
        return pb.ExecResponse(url=exec_url(self._rt, request=request))

    def Attach(self, request: pb.AttachRequest, _context: ServicerContext) -> pb.AttachResponse:
        validate.attach(request)
        return pb.AttachResponse(url=attach_url(self._rt, request=request))

    def PortForward(self, request: pb.PortForwardRequest, _context: ServicerContext) -> pb.PortForwardResponse:
        validate.port_forward(request)
        return pb.PortForwardResponse(url=port_forward_url(self._rt, request=request))

    def ContainerStats(self, request: pb.ContainerStatsRequest, _context: ServicerContext) -> pb.ContainerStatsResponse:
        validate.container_id(request)
        return pb.ContainerStatsResponse(stats=container_stats(self._rt, container_id=request.container_id))

    def ListContainerStats(
        self, request: pb.ListContainerStatsRequest, _context: ServicerContext
    ) -> pb.ListContainerStatsResponse:
        validate.well_formed(request)
        return pb.ListContainerStatsResponse(stats=list_container_stats(self._rt, filter=request.filter))

    def StreamContainerStats(
        self, request: pb.StreamContainerStatsRequest, _context: ServicerContext
    ) -> Iterator[pb.StreamContainerStatsResponse]:
        validate.well_formed(request)
        for some in chunks(list_container_stats(self._rt, filter=request.filter)):
            yield pb.StreamContainerStatsResponse(container_stats=some)

    def PodSandboxStats(
        self, request: pb.PodSandboxStatsRequest, _context: ServicerContext
    ) -> pb.PodSandboxStatsResponse:
        validate.pod_sandbox_id(request)
        return pb.PodSandboxStatsResponse(stats=pod_sandbox_stats(self._rt, sandbox_id=request.pod_sandbox_id))

    def ListPodSandboxStats(
        self, request: pb.ListPodSandboxStatsRequest, _context: ServicerContext
    ) -> pb.ListPodSandboxStatsResponse:
        validate.well_formed(request)
        return pb.ListPodSandboxStatsResponse(stats=list_pod_sandbox_stats(self._rt, filter=request.filter))

    def StreamPodSandboxStats(
        self, request: pb.StreamPodSandboxStatsRequest, _context: ServicerContext
    ) -> Iterator[pb.StreamPodSandboxStatsResponse]:
        validate.well_formed(request)
        for some in chunks(list_pod_sandbox_stats(self._rt, filter=request.filter)):
            yield pb.StreamPodSandboxStatsResponse(pod_sandbox_stats=some)

    def ListMetricDescriptors(
        self, _request: pb.ListMetricDescriptorsRequest, _context: ServicerContext
    ) -> pb.ListMetricDescriptorsResponse:
        return pb.ListMetricDescriptorsResponse(descriptors=list_metric_descriptors())

    def ListPodSandboxMetrics(
        self, _request: pb.ListPodSandboxMetricsRequest, _context: ServicerContext
    ) -> pb.ListPodSandboxMetricsResponse:
        return pb.ListPodSandboxMetricsResponse(pod_metrics=list_pod_sandbox_metrics(self._rt))

    def StreamPodSandboxMetrics(
        self, _request: pb.StreamPodSandboxMetricsRequest, _context: ServicerContext
    ) -> Iterator[pb.StreamPodSandboxMetricsResponse]:
        for some in chunks(list_pod_sandbox_metrics(self._rt)):
            yield pb.StreamPodSandboxMetricsResponse(pod_sandbox_metrics=some)
