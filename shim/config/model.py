"""Every setting of the server, with its unit and default.

The field name is the key in TOML files; with `-` for `_` it is the flag. Names are cri-dockerd's where the meaning
is the same. A new setting is a field here: its type, or the form attached to it, determines the accepted values.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from shim.config import forms

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "console", "json"]
DockerLogDriver = Literal["json-file", "local"]
NetworkPlugin = Literal["cni", "none"]
RestrictOomScoreAdj = Literal["auto", "true", "false"]


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The effective settings of a server."""

    container_runtime_endpoint: Annotated[str, forms.LISTENING_ENDPOINT] = "unix:///run/cri-dockerd.sock"
    """Where the CRI is served: `unix:///path`, or `fd://` for a socket passed by systemd."""

    docker_endpoint: Annotated[str, forms.DOCKER_ENDPOINT] = "unix:///var/run/docker.sock"
    """Where the Docker Engine listens: `unix:///path`. The Engine must run on this machine."""

    root_directory: Annotated[Path, forms.PRIVATE_DIRECTORY] = Path("/var/lib/pydockershim")
    """State that must survive a restart (mode 0700), such as checkpoints of pods, and a lock that keeps a second server
    out."""

    netns_directory: Path = Path("/run/netns")
    """Where each pod's network namespace is pinned, as `cri-<sandbox id>`."""

    pod_infra_container_image: Annotated[str, forms.IMAGE_REFERENCE] = "registry.k8s.io/pause:3.10.2"
    """Image of the pause container, which holds a pod's namespaces; pulled if missing, reported as pinned."""

    pinned_images: Annotated[tuple[str, ...], forms.IMAGE_PATTERNS] = ()
    """Images the kubelet must not collect, in addition to the pause image: names with or without a tag, `*` for any
    characters."""

    kubelet_root_dir: Path = Path("/var/lib/kubelet")
    """The kubelet's `--root-dir`, the first place to search for config.json and .dockercfg for pulls without
    credentials."""

    image_credential_provider_config: Annotated[str, forms.OPTIONAL_PATH] = ""
    """The kubelet's CredentialProviderConfig: a file, or a directory of such files; empty for no providers."""

    image_credential_provider_bin_dir: Annotated[str, forms.OPTIONAL_PATH] = ""
    """Directory of the credential provider plugins that the file names."""

    image_pull_progress_deadline: Annotated[float, forms.seconds(least=forms.MIN_SECONDS, zero="no limit")] = 60.0
    """Seconds without progress (download or extraction) after which a pull is aborted; ten times as long while Docker
    queues the pull behind others, and sixty times while other pulls of this server make progress."""

    runtime_request_timeout: Annotated[float, forms.seconds(least=forms.MIN_SECONDS, zero=forms.DEFAULT)] = 120.0
    """Seconds that a call to Docker may take, in addition to a grace period that is part of the call."""

    own_exec: bool = True
    """Run the commands of exec, probes and hooks without Docker where that gives the same process, at a fifth of
    the cost."""

    cni_conf_dir: Path = Path("/etc/cni/net.d")
    """Directory of CNI configurations; the first valid file in name order is used."""

    cni_bin_dir: tuple[Path, ...] = (Path("/opt/cni/bin"), Path("/usr/lib/cni"))
    """Directories searched for CNI plugins, in this order."""

    cni_cache_dir: Path = Path("/var/lib/cni/cache")
    """Where CNI results are kept, in the format of the CNI reference library."""

    cni_plugin_timeout: Annotated[float, forms.seconds(least=1)] = 220.0
    """Seconds after which a run of a CNI plugin is killed."""

    cni_conf_template: Annotated[str, forms.OPTIONAL_PATH] = ""
    """Template of a CNI configuration that is written to `cni_conf_dir`, as its last file, once the node's pod address
    ranges are known; empty for none."""

    cni_gc_interval: Annotated[
        float, forms.seconds(least=forms.MIN_SECONDS, zero="no clean-up, not even at the start")
    ] = 600.0
    """Seconds between clean-ups of networks without a pod; the first is at the start."""

    network_plugin: Annotated[NetworkPlugin, forms.NETWORK_PLUGIN] = "cni"
    """How pods get their network: `cni`, or `none` for only a loopback interface."""

    pod_cidr: Annotated[str, forms.POD_RANGES] = ""
    """Pod address ranges of this node, comma-separated, used until UpdateRuntimeConfig sets them."""

    streaming_bind_addr: Annotated[str, forms.BIND_ADDRESS] = "127.0.0.1:0"
    """Where exec, attach and port-forward are served: an IP address, or IP:PORT; port 0 picks a free port."""

    streaming_tls_cert_file: Annotated[str, forms.OPTIONAL_PATH] = ""
    """Certificate chain (PEM) for streaming over TLS; empty for plain HTTP."""

    streaming_tls_key_file: Annotated[str, forms.OPTIONAL_PATH] = ""
    """Private key (PEM) of that certificate."""

    streaming_tls_client_ca_file: Annotated[str, forms.OPTIONAL_PATH] = ""
    """CA certificates (PEM) that streaming clients' certificates must be signed by; empty requires no client
    certificate."""

    streaming_allow_plain_remote: bool = False
    """Whether streaming may be served without TLS on a non-loopback address."""

    streaming_idle_timeout: Annotated[float, forms.seconds(least=forms.MIN_SECONDS, zero="no limit")] = 14400.0
    """Seconds without traffic in either direction after which a session is ended."""

    streaming_creation_timeout: Annotated[float, forms.seconds(least=1)] = 30.0
    """Seconds a client has to open the streams of its session."""

    streaming_max_sessions: Annotated[int, forms.number(1, 10_000)] = 512
    """Maximum concurrent sessions of exec, attach and port-forward; further sessions are refused with 503."""

    streaming_max_sessions_per_container: Annotated[int, forms.number(1, 10_000)] = 64
    """Maximum concurrent sessions for a container; for port-forward, for a pod."""

    nri: bool = True
    """Whether NRI plugins (Node Resource Interface) may see and change pods and containers."""

    nri_socket_path: Path = Path("/var/run/nri/nri.sock")
    """The socket where NRI plugins connect; it is not replaced while another program listens on it."""

    nri_disable_connections: bool = False
    """Whether to omit that socket: then only installed plugins are run."""

    nri_plugin_path: Path = Path("/opt/nri/plugins")
    """Directory of NRI plugins that the server starts: programs such as `10-logger`, called in name order."""

    nri_plugin_config_path: Path = Path("/etc/nri/conf.d")
    """Directory of their configurations: `10-logger.conf`, or `logger.conf`."""

    nri_plugin_registration_timeout: Annotated[float, forms.seconds(least=forms.MIN_SECONDS)] = 5.0
    """Seconds an NRI plugin has to register, and to answer the initial synchronization."""

    nri_plugin_request_timeout: Annotated[float, forms.seconds(least=forms.MIN_SECONDS)] = 2.0
    """Seconds an NRI plugin has to answer a request; a plugin that takes longer is dropped."""

    nri_default_validator: bool = False
    """Check NRI plugins' changes of a container by the following settings."""

    nri_reject_oci_hook_adjustment: bool = False
    """Refuse a container if an NRI plugin has added OCI hooks."""

    nri_reject_runtime_default_seccomp_adjustment: bool = False
    """Refuse a container if an NRI plugin has changed the runtime's default seccomp policy."""

    nri_reject_unconfined_seccomp_adjustment: bool = False
    """Refuse a container without a seccomp policy if an NRI plugin has added a policy."""

    nri_reject_custom_seccomp_adjustment: bool = False
    """Refuse a container if an NRI plugin has changed its seccomp profile of the node."""

    nri_reject_namespace_adjustment: bool = False
    """Refuse a container if an NRI plugin has changed its namespaces."""

    nri_reject_sysctl_adjustment: bool = False
    """Refuse a container if an NRI plugin has changed its sysctls."""

    nri_required_plugins: Annotated[tuple[str, ...], forms.PLUGIN_NAMES] = ()
    """NRI plugins that each new container needs."""

    nri_tolerate_missing_plugins_annotation: Annotated[str, forms.OPTIONAL_ANNOTATION] = ""
    """Annotation of pods that opt out of these plugins; empty for none."""

    restrict_oom_score_adj: RestrictOomScoreAdj = "auto"
    """Raise OOM scores that Docker may not set to the lowest it may, instead of failing; `auto` detects whether that is
    needed."""

    pod_annotations: Annotated[tuple[str, ...], forms.ANNOTATION_PATTERNS] = ()
    """Annotations of pods that are passed to the OCI runtime, for the pause container and every other: keys, `*` for
    any characters."""

    container_annotations: Annotated[tuple[str, ...], forms.ANNOTATION_PATTERNS] = ()
    """Annotations of containers that are passed to the OCI runtime as well: keys, `*` for any characters."""

    docker_log_driver: DockerLogDriver = "json-file"
    """How Docker keeps its own copy of a new container's output: `local` also keeps bytes that are not UTF-8."""

    docker_log_max_size: Annotated[str, forms.LOG_SIZE] = "16m"
    """Size at which Docker rotates its own copy of a container's output, which `docker logs` shows."""

    # Docker truncates a single file in place, and output that was not copied by then is lost.
    docker_log_max_file: Annotated[int, forms.number(2, 100)] = 2
    """Number of files that Docker keeps of that copy. Output that is missing in the CRI log is copied from them."""

    shutdown_grace: Annotated[float, forms.seconds(zero="calls in flight are cut off at once")] = 240.0
    """Seconds that pods being created, such as in a CNI ADD, may take after SIGTERM. Reads are still answered."""

    metrics_bind_addr: Annotated[str, forms.HTTP_ADDRESS] = ""
    """Where the server's own metrics are served over HTTP, as `host:port`; a port alone means 127.0.0.1. Empty: not
    served."""

    tracing_endpoint: Annotated[str, forms.COLLECTOR] = ""
    """Where traces of RPCs are sent: an OpenTelemetry collector with OTLP over gRPC. Empty: nowhere. Needs the extra
    libraries of `pydockershim[tracing]`."""

    tracing_sampling_rate_per_million: Annotated[
        int, forms.number(0, 1_000_000, zero="only RPCs whose client traces them")
    ] = 0
    """How many RPCs in a million are traced if their client does not decide: a kubelet with tracing decides itself."""

    log_level: Annotated[LogLevel, forms.LOG_LEVEL] = "info"
    """Lowest severity that is logged."""

    log_format: LogFormat = "auto"
    """`json` (an object per line), `console`, or `auto`: console on a terminal, else json."""
