"""Every setting of the shim, with its unit and default.

The field name is the key of the TOML file; with `-` for `_` it is the flag. Names are cri-dockerd's where the meaning
is the same.
"""

from pathlib import Path
from typing import Literal

import msgspec

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "console", "json"]
DockerLogDriver = Literal["json-file", "local"]
NetworkPlugin = Literal["cni", "none"]
RestrictOomScoreAdj = Literal["auto", "true", "false"]


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The effective settings of one server."""

    container_runtime_endpoint: str = "unix:///run/cri-dockerd.sock"
    """Where the CRI is served: `unix:///path`, or `fd://` for a socket handed over by systemd."""

    docker_endpoint: str = "unix:///var/run/docker.sock"
    """Where the Docker Engine answers: `unix:///path`. It must be this machine's Engine."""

    root_directory: Path = Path("/var/lib/pydockershim")
    """State that must outlive a restart (0700): checkpoints in `sandboxes`, each pod's file in `resolv-conf`, what
    Docker cannot keep in `limits`, `pod-cidr`, and what Docker last said of itself in `engine.json`; and `lock`, by
    which no second server uses it."""

    netns_directory: Path = Path("/run/netns")
    """Where the network namespace of each pod is pinned, as `cri-<sandbox id>`."""

    pod_infra_container_image: str = "registry.k8s.io/pause:3.10.2"
    """Image of the container that holds the namespaces of a pod; pulled when missing, reported as pinned."""

    pinned_images: tuple[str, ...] = ()
    """Images the kubelet must not collect, besides the pause image: names with or without a tag, `*` for any
    characters."""

    kubelet_root_dir: Path = Path("/var/lib/kubelet")
    """The kubelet's `--root-dir`, the first place of config.json and .dockercfg for pulls that bring no credentials."""

    image_credential_provider_config: str = ""
    """The kubelet's CredentialProviderConfig: a file, or a directory of such files; empty for no providers."""

    image_credential_provider_bin_dir: str = ""
    """Directory of the credential provider plugins that the file names."""

    image_pull_progress_deadline: float = 60.0
    """Seconds a pull may show no progress (download or extraction) before it is given up; 0 waits for ever. While
    Docker lets it wait for other pulls, it may be ten times as long, and sixty while others of this server move on."""

    runtime_request_timeout: float = 120.0
    """Seconds one call to Docker may take, on top of a grace period that is part of the call; 0 is the default."""

    own_exec: bool = True
    """Run the commands of exec, probes and hooks without Docker where that gives the same process: at a fifth of the
    cost. False leaves all to Docker."""

    cni_conf_dir: Path = Path("/etc/cni/net.d")
    """Directory of CNI configurations; the first valid one by file name is used."""

    cni_bin_dir: tuple[Path, ...] = (Path("/opt/cni/bin"), Path("/usr/lib/cni"))
    """Directories searched for CNI plugins, in this order."""

    cni_cache_dir: Path = Path("/var/lib/cni/cache")
    """Where CNI results are kept in the format of the CNI reference library."""

    cni_plugin_timeout: float = 220.0
    """Seconds one run of one CNI plugin may take before it is killed."""

    cni_conf_template: str = ""
    """Template of a CNI configuration that is written to `cni_conf_dir`, as its last file, when the pod address ranges
    of the node are known; empty for none."""

    cni_gc_interval: float = 600.0
    """Seconds between two clean-ups of networks that belong to no pod any more; the first comes at the start."""

    network_plugin: NetworkPlugin = "cni"
    """How pods get their network: `cni`, or `none` for the loopback interface alone."""

    pod_cidr: str = ""
    """Pod address range(s) of this node, comma-separated, until UpdateRuntimeConfig brings them."""

    streaming_bind_addr: str = "127.0.0.1:0"
    """Where exec, attach and port-forward are served: an IP address, or IP:PORT; port 0 is one that is free."""

    streaming_tls_cert_file: str = ""
    """Certificate chain (PEM) with which streaming is served; empty for plain HTTP."""

    streaming_tls_key_file: str = ""
    """Private key (PEM) of that certificate."""

    streaming_tls_client_ca_file: str = ""
    """CA certificates (PEM) one of which must have signed a streaming client's certificate; empty asks for none."""

    streaming_allow_plain_remote: bool = False
    """Whether streaming may be served without TLS on an address that is not a loopback one."""

    streaming_idle_timeout: float = 14400.0
    """Seconds without traffic in either direction after which a session is ended; 0 waits for ever."""

    streaming_creation_timeout: float = 30.0
    """Seconds a client has to open the streams of its session."""

    streaming_max_sessions: int = 512
    """Sessions of exec, attach and port-forward at once; further ones are refused with 503."""

    streaming_max_sessions_per_container: int = 64
    """The same for one container; of port-forward for one pod."""

    nri: bool = True
    """Whether plugins of NRI (Node Resource Interface) may see and change pods and containers."""

    nri_socket_path: Path = Path("/var/run/nri/nri.sock")
    """The socket on which NRI plugins connect; it is not taken while another program listens there."""

    nri_disable_connections: bool = False
    """Whether to have no such socket: only plugins that are installed are run."""

    nri_plugin_path: Path = Path("/opt/nri/plugins")
    """Directory of NRI plugins that the server starts: programs such as `10-logger`, asked by the order of names."""

    nri_plugin_config_path: Path = Path("/etc/nri/conf.d")
    """Directory of their configurations: `10-logger.conf`, or `logger.conf`."""

    nri_plugin_registration_timeout: float = 5.0
    """Seconds that an NRI plugin may take to register, and for its answer to all that there is on the node."""

    nri_plugin_request_timeout: float = 2.0
    """Seconds that an NRI plugin may take for an answer; one that takes longer is dropped."""

    nri_default_validator: bool = False
    """Whether the built-in validator checks what NRI plugins make of a container, by the settings that follow."""

    nri_reject_oci_hook_adjustment: bool = False
    """Whether that validator refuses containers to which a plugin has added OCI hooks."""

    nri_reject_runtime_default_seccomp_adjustment: bool = False
    """Whether it refuses those whose seccomp policy a plugin has changed from the runtime's default."""

    nri_reject_unconfined_seccomp_adjustment: bool = False
    """The same where the container was to have none."""

    nri_reject_custom_seccomp_adjustment: bool = False
    """The same where it was to have a profile of the node."""

    nri_reject_namespace_adjustment: bool = False
    """Whether it refuses those whose namespaces a plugin has changed."""

    nri_reject_sysctl_adjustment: bool = False
    """Whether it refuses those whose sysctls a plugin has changed."""

    nri_required_plugins: tuple[str, ...] = ()
    """Names of NRI plugins without which it lets no container be created."""

    nri_tolerate_missing_plugins_annotation: str = ""
    """Annotation with which a pod does without these; empty for none."""

    restrict_oom_score_adj: RestrictOomScoreAdj = "auto"
    """Raise OOM scores that Docker may not set to the lowest it may, instead of failing; `auto` finds out whether that
    is needed."""

    pod_annotations: tuple[str, ...] = ()
    """Annotations of pods that the OCI runtime gets, for pause and every container: keys, `*` for any characters."""

    container_annotations: tuple[str, ...] = ()
    """Annotations of a container that its OCI runtime gets in addition: keys, `*` for any characters."""

    docker_log_driver: DockerLogDriver = "json-file"
    """How Docker keeps its own copy of a new container's output: `local` keeps bytes that are not UTF-8, too."""

    docker_log_max_size: str = "16m"
    """Size at which Docker rotates its own copy of a container's output, which `docker logs` shows."""

    docker_log_max_file: int = 2
    """How many files Docker keeps of that copy. What the CRI log does not hold yet is copied from them."""

    shutdown_grace: float = 240.0
    """Seconds that pod sandboxes under way, such as a CNI ADD, may take after SIGTERM. Reads are still answered."""

    metrics_bind_addr: str = ""
    """Where the server's own metrics are served over HTTP, as `host:port`; a port alone is on 127.0.0.1. Empty: not
    served."""

    tracing_endpoint: str = ""
    """Where traces of RPCs are sent to: an OpenTelemetry collector that takes OTLP over gRPC. Empty: nowhere. Needs the
    extra libraries of `pydockershim[tracing]`."""

    tracing_sampling_rate_per_million: int = 0
    """How many of a million RPCs are traced whose client does not say: a kubelet that traces as well decides itself."""

    log_level: LogLevel = "info"
    """Least severity that is logged."""

    log_format: LogFormat = "auto"
    """`json` (one object a line), `console`, or `auto`: console on a terminal, else json."""
