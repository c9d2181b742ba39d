"""Mistakes of administrators on a node with the package, each with its finding of `pydockershim doctor`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_DROP_IN = "/etc/pydockershim/conf.d/mistake.toml"
_NETWORK = "/etc/cni/net.d/10-bridge.conflist"
_DAEMON_JSON = "/etc/docker/daemon.json"
_KUBELET = "/var/lib/kubelet/config.yaml"
_UNITS = "pydockershim.socket pydockershim.service"
_RESTART = "systemctl restart pydockershim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A mistake as commands of a shell, the finding that must come first, and the commands that mend the node."""

    name: str
    made: str
    level: str
    subject: str
    text: str
    """Part of the finding."""
    advice: str
    """Part of the advice; the remedy follows it."""
    mended: str
    after: str = ""
    """Commands that give the node its own files again."""

    def is_first(self, findings: Sequence[Mapping[str, str]]) -> bool:
        """Return whether the first of these findings is of this mistake, with its advice."""
        if not findings:
            return False
        first = findings[0]
        right = (first["level"], first["subject"]) == (self.level, self.subject)
        return right and self.text in first["text"] and self.advice in first["advice"]


def _setting(line: str) -> str:
    return f"echo '{line}' >{_DROP_IN}; systemctl restart --no-block pydockershim"


def _of_kubelet(*lines: str) -> str:
    return f"mkdir -p /var/lib/kubelet; printf '%s\\n' {' '.join(repr(line) for line in lines)} >{_KUBELET}"


_NO_PLUGINS = _setting('cni_bin_dir = ["/opt/none"]')
_OF_OTHERS = _setting('root_directory = "/srv/others"')
_OUR_SOCKET = "sed -i 's#^containerRuntimeEndpoint:.*#containerRuntimeEndpoint: unix:///run/cri-dockerd.sock#'"

MISTAKES = (
    Mistake(
        name="typo",
        made=_setting("log_levle = 1"),
        level="FAIL",
        subject="settings",
        text=f"file {_DROP_IN}, line 1: there is no setting 'log_levle', perhaps 'log_level'",
        advice="correct it",
        mended=f"rm {_DROP_IN}",
    ),
    Mistake(
        name="no network",
        made=f"rm {_NETWORK}",
        level="FAIL",
        subject="pod network",
        text="holds no .conflist",
        advice="pydockershim install --cni 10-bridge",
        mended="pydockershim install --cni 10-bridge",
    ),
    Mistake(
        name="broken network",
        made=f"echo '{{' >{_NETWORK}",
        level="FAIL",
        subject="pod network",
        text="10-bridge.conflist: not JSON",
        advice="or remove it: pydockershim install --cni 10-bridge",
        mended=f"rm {_NETWORK}; pydockershim install --cni 10-bridge",
    ),
    Mistake(
        name="two networks",
        made=f"cp {_NETWORK} /etc/cni/net.d/20-other.conflist",
        level="warn",
        subject="pod network",
        text="20-other.conflist of /etc/cni/net.d is never used",
        advice=f"rm {_NETWORK}",
        mended=f"rm {_NETWORK}",
        after=f"mv /etc/cni/net.d/20-other.conflist {_NETWORK}",
    ),
    Mistake(
        name="wrong plugin directory",
        made=_NO_PLUGINS,
        level="FAIL",
        subject="pod network",
        text="plugin binaries bridge, portmap, firewall not found in /opt/none",
        advice="add it to cni_bin_dir where it is set (pydockershim config | grep cni_bin_dir)",
        mended=f"rm {_DROP_IN}; {_RESTART}",
    ),
    Mistake(
        name="corrected without a restart",
        made=f"{_NO_PLUGINS}; sleep 5; rm {_DROP_IN}",
        level="FAIL",
        subject="server",
        text="but has no pod network: NetworkPluginNotReady",
        advice=_RESTART,
        mended=_RESTART,
    ),
    Mistake(
        name="directory of others",
        made=f"mkdir /srv/others; touch /srv/others/file; {_OF_OTHERS}",
        level="FAIL",
        subject="server",
        text="make this one private: chmod 0700 /srv/others",
        advice="the server tries again within 30 s",
        mended="chmod 0700 /srv/others",
        after=f"rm {_DROP_IN}; {_RESTART}; rm -r /srv/others",
    ),
    Mistake(
        name="address of metrics",
        made=_setting('metrics_bind_addr = "192.0.2.77:9180"'),
        level="warn",
        subject="server",
        text="serve metrics at 192.0.2.77:9180: cannot assign requested address",
        advice="set an address of this node with a free port",
        mended=f"rm {_DROP_IN}; {_RESTART}",
    ),
    Mistake(
        name="stopped",
        made=f"systemctl stop {_UNITS}",
        level="FAIL",
        subject="unit",
        text="pydockershim.service is inactive",
        advice=f"systemctl enable --now {_UNITS}",
        mended=f"systemctl enable --now {_UNITS}",
    ),
    Mistake(
        name="masked",
        made=f"systemctl stop {_UNITS}; systemctl mask pydockershim.service",
        level="FAIL",
        subject="unit",
        text="masked",
        advice="systemctl unmask pydockershim.service && systemctl restart pydockershim.service",
        mended="systemctl unmask pydockershim.service && systemctl restart pydockershim.service",
        after=f"systemctl enable --now {_UNITS}",
    ),
    Mistake(
        name="socket removed",
        made="rm /run/cri-dockerd.sock",
        level="FAIL",
        subject="server",
        text="has been removed",
        advice=f"systemctl restart {_UNITS}",
        mended=f"systemctl restart {_UNITS}",
    ),
    Mistake(
        name="Docker stopped",
        made="systemctl stop docker.socket docker",
        level="FAIL",
        subject="docker",
        text="Docker cannot be reached",
        advice="systemctl start docker",
        mended="systemctl start docker",
    ),
    Mistake(
        name="Docker's settings",
        made=f"cp {_DAEMON_JSON} /srv/; echo '{{' >{_DAEMON_JSON}",
        level="warn",
        subject="docker",
        text=f"{_DAEMON_JSON} is not JSON",
        advice=f"python3 -m json.tool {_DAEMON_JSON}",
        mended=f"cp /srv/daemon.json {_DAEMON_JSON}",
    ),
    Mistake(
        name="no forwarding",
        made="sysctl -w net.ipv4.ip_forward=0",
        level="warn",
        subject="forwarding",
        text="net.ipv4.ip_forward is 0",
        advice="sysctl -w net.ipv4.ip_forward=1",
        mended="sysctl -w net.ipv4.ip_forward=1",
    ),
    Mistake(
        name="kubelet of containerd",
        made=_of_kubelet(
            "failCgroupV1: false", "cgroupDriver: systemd", "containerRuntimeEndpoint: unix:///run/c.sock"
        ),
        level="FAIL",
        subject="kubelet",
        text="uses unix:///run/c.sock",
        advice=_OUR_SOCKET,
        mended=f"{_OUR_SOCKET} {_KUBELET}",
        after="rm -r /var/lib/kubelet",
    ),
    Mistake(
        name="broken kubelet file",
        made=_of_kubelet("cgroupDriver: ["),
        level="FAIL",
        subject="kubelet",
        text=f"{_KUBELET} is not YAML",
        advice="correct that file",
        mended="rm -r /var/lib/kubelet",
    ),
)
