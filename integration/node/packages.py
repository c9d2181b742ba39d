"""Packages of Debian and Ubuntu: host tools installed by apt, programs with services only unpacked.

Docker, the CNI plugins and the registry are unpacked by `dpkg -x` into a cache instead of installed. So a machine keeps
its Docker of any vendor, no service is started or replaced, and two Docker versions can coexist. apt still checks the
signatures, with a private configuration that uses the machine's mirror and keys.
"""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import msgspec

from integration.node.commands import NodeError, run, step

_APT_SECONDS = 900
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_RECORD = "bundle.json"

HOST_PACKAGES = ("iptables", "iproute2", "libdevmapper1.02.1", "libseccomp2", "nftables", "patchelf")
"""Tools and libraries without services that the unpacked programs need in their usual places."""


class Bundle(msgspec.Struct, frozen=True):
    """Packages that are unpacked together.

    `suites` are tried in order, of Ubuntu if `ubuntu` and of Debian otherwise. A suite is skipped if its `program` is
    older than `least`, or does not run on this machine, for example because it needs a newer glibc. `ask` makes the
    program print its version.
    """

    name: str
    suites: tuple[str, ...]
    packages: tuple[str, ...]
    ubuntu: bool = False
    program: str = ""
    ask: tuple[str, ...] = ("--version",)
    least: tuple[int, ...] = ()


class Record(msgspec.Struct, frozen=True):
    """The contents of an unpacked bundle; written last, so its presence means that the bundle is complete."""

    suite: str
    versions: dict[str, str]


class Unpacked(msgspec.Struct, frozen=True):
    """An unpacked bundle: the directory in the role of `/`, and its record."""

    root: Path
    record: Record

    @property
    def path(self) -> tuple[Path, ...]:
        """Directories of its programs, as a search path."""
        return (self.root / "usr/sbin", self.root / "usr/bin", self.root / "bin")


STABLE = Bundle(name="engine-20.10", suites=("bookworm",), packages=("docker.io", "containerd", "runc", "tini"))
# Docker's own packages have a newer runc than Debian 12. It needs a newer C library too.
NEWER_RUNC = Bundle(name="runc", suites=("testing", "unstable"), packages=("libc6", "libseccomp2", "runc"))
NEWER = Bundle(
    name="engine-28",
    suites=("testing", "unstable"),
    packages=("docker.io", "containerd"),
    program="usr/sbin/dockerd",
    least=(28,),
)
DEBIAN_13 = Bundle(
    name="engine-26",
    suites=("trixie",),
    packages=("docker.io", "containerd"),
    program="usr/sbin/dockerd",
    least=(26,),
)
UBUNTU_24 = Bundle(
    name="engine-29",
    suites=("noble",),
    packages=("docker.io", "containerd"),
    ubuntu=True,
    program="usr/bin/dockerd",
    least=(29,),
)
ON_DEMAND = {"26": DEBIAN_13, "29-containerd": UBUNTU_24}
"""Engines that only some runs need, by name; fetched on demand."""
UBUNTU_KEYS = Bundle(name="ubuntu-keyring", suites=("testing", "unstable"), packages=("ubuntu-keyring",))
TOOLS = Bundle(name="tools", suites=("bookworm",), packages=("containernetworking-plugins", "docker-registry"))
NEWER_PLUGINS = Bundle(name="cni-plugins", suites=("testing", "unstable"), packages=("containernetworking-plugins",))
OLDER_PLUGINS = Bundle(name="cni-plugins-0.9", suites=("bullseye",), packages=("containernetworking-plugins",))
BUSYBOX = Bundle(name="busybox", suites=("bookworm",), packages=("busybox-static",))
MONITORING = Bundle(name="monitoring", suites=("bookworm",), packages=("prometheus",))  # for promtool
LOG_AGENT = Bundle(
    name="rsyslog", suites=("bookworm",), packages=("libestr0", "libfastjson4", "liblognorm5", "rsyslog")
)
SHELLS = Bundle(
    name="shells", suites=("bookworm",), packages=("fish", "fish-common", "libpcre2-32-0", "zsh", "zsh-common")
)
# With its libraries, since nothing else on a node of the tests needs them.
PODMAN = Bundle(
    name="podman",
    suites=("bookworm",),
    packages=("podman", "conmon", "netavark", "libassuan0", "libglib2.0-0", "libgpgme11", "libsubid4"),
)
KUBECTL = Bundle(name="kubectl-1.20", suites=("bookworm",), packages=("kubernetes-client",))
# kubectl tries WebSocket before SPDY from 1.31 on.
NEWER_KUBECTL = Bundle(
    name="kubectl-newer",
    suites=("testing", "unstable"),
    packages=("kubectl",),
    program="usr/bin/kubectl",
    ask=("version", "--client"),
    least=(1, 31),
)
# criu 3.17 of Debian 12 does not run on newer kernels; 4.1 of Debian 13 cannot dump TCP sockets on Linux 6.18. The
# newer criu needs a newer C library, so the bundle contains one with its loader.
CRIU = Bundle(
    name="criu-4.2",
    suites=("testing", "unstable"),
    packages=(
        "checkpointctl",
        "criu",
        "libbsd0",
        "libc6",
        "libcap2",
        "libdrm2",
        "libedit2",
        "libffi8",
        "libgcc-s1",
        "libgmp10",
        "libgnutls30t64",
        "libhogweed6t64",
        "libidn2-0",
        "libjansson4",
        "libmd0",
        "libmnl0",
        "libnet9",
        "libnettle8t64",
        "libnftables1",
        "libnftnl11",
        "libnl-3-200",
        "libp11-kit0",
        "libprotobuf-c1",
        "libtasn1-6",
        "libtinfo6",
        "libunistring5",
        "libuuid1",
        "libxtables12",
    ),
)


def cache_directory() -> Path:
    """Return the directory of unpacked bundles: outside the checkout, so that a fresh clone need not download again."""
    return Path(os.environ.get("PYDOCKERSHIM_CACHE", "/var/cache/pydockershim"))


# --- packages installed on the machine ------------------------------------------------------------------


def ensure_installed(names: Iterable[str]) -> tuple[str, ...]:
    """Install the missing packages; return their names."""
    missing = tuple(name for name in names if not is_installed(name))
    if missing:
        with step(f"installing {' '.join(missing)}"):
            run(["apt-get", "update", "-qq"], timeout=_APT_SECONDS)
            run(
                ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing],
                timeout=_APT_SECONDS,
                env={"DEBIAN_FRONTEND": "noninteractive"},
            )
    return missing


def is_installed(name: str) -> bool:
    """Return whether dpkg has the package fully installed."""
    try:
        status = run(["dpkg-query", "--show", "--showformat=${db:Status-Status}", name], timeout=30)
    except NodeError:
        return False  # dpkg-query exits 1 for an unknown package
    return status == "installed"


# --- packages unpacked into the cache -------------------------------------------------------------------


def ensure_unpacked(bundle: Bundle) -> Unpacked:
    """Return the unpacked bundle, from the cache or downloaded from the first suite that has it.

    Raises NodeError with the reason of every suite if none works.
    """
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    if bundle.ubuntu:
        ensure_installed(["mmdebstrap"])
    with _locked(cache / "lock"):
        return _ensure_unpacked(cache, bundle)


def unpacked(bundle: Bundle) -> Unpacked | None:
    """Return the bundle if the cache has it."""
    return _cached(cache_directory(), bundle)


def ubuntu_keyring(keys: Unpacked) -> Path:
    """Return the keys that sign Ubuntu's archive, from UBUNTU_KEYS."""
    return keys.root / "usr/share/keyrings/ubuntu-archive-keyring.gpg"


def _ensure_unpacked(cache: Path, bundle: Bundle) -> Unpacked:
    return _cached(cache, bundle) or _downloaded(cache, bundle)


def _cached(cache: Path, bundle: Bundle) -> Unpacked | None:
    root = cache / bundle.name
    try:
        record = msgspec.json.decode((root / _RECORD).read_bytes(), type=Record)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return Unpacked(root=root, record=record) if set(record.versions) == set(bundle.packages) else None


def _downloaded(cache: Path, bundle: Bundle) -> Unpacked:
    reasons = []
    for suite in bundle.suites:
        try:
            with step(f"unpacking {' '.join(bundle.packages)} from {'Ubuntu' if bundle.ubuntu else 'Debian'} {suite}"):
                return _unpacked_from(suite, cache=cache, bundle=bundle)
        except NodeError as cause:
            reasons.append(f"{suite}: {cause}")
    raise NodeError(f"unpack {bundle.name}: no usable suite\n" + "\n".join(reasons))


def _unpacked_from(suite: str, *, cache: Path, bundle: Bundle) -> Unpacked:
    with tempfile.TemporaryDirectory(dir=cache, prefix=f"{bundle.name}.") as scratch:
        root = Path(scratch, "root")
        versions = {}
        downloads = Path(scratch, "archives")
        downloads.mkdir()
        download = _download_of_ubuntu if bundle.ubuntu else _download_of_debian
        download(suite, cache=cache, packages=bundle.packages, into=downloads)
        for archive in sorted(downloads.glob("*.deb")):
            run(["dpkg-deb", "--extract", archive, root], timeout=120)
            name, version = package_of_archive(archive.name)
            versions[name] = version
        _link_docker_init(root)
        if bundle.program:
            check_version(run([root / bundle.program, *bundle.ask], timeout=30), least=bundle.least)
        record = Record(suite=suite, versions=versions)
        (root / _RECORD).write_bytes(msgspec.json.encode(record))
        final = cache / bundle.name
        if final.exists():
            shutil.rmtree(final)
        root.rename(final)
    return Unpacked(root=final, record=record)


def _link_docker_init(root: Path) -> None:
    # Docker looks for its init under this name; Debian creates the link in the installation script, which an unpacked
    # package never runs.
    tini, link = root / "usr/bin/tini-static", root / "usr/bin/docker-init"
    if tini.exists() and not link.exists():
        link.symlink_to(tini.name)


def _download_of_ubuntu(suite: str, *, cache: Path, packages: Sequence[str], into: Path) -> None:
    """Download with mmdebstrap, which knows Ubuntu's archive and the suites of its updates."""
    keyring = ubuntu_keyring(_ensure_unpacked(cache, UBUNTU_KEYS))
    download = f'cd {into} && APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get download -qq {" ".join(packages)}'
    options = [f"--keyring={keyring}", "--components=main,universe", f"--customize-hook={download}"]
    nothing = ["--variant=custom", "--format=null"]
    run(["mmdebstrap", "--quiet", *nothing, *options, suite, "/dev/null"], timeout=_APT_SECONDS)


def _download_of_debian(suite: str, *, cache: Path, packages: Sequence[str], into: Path) -> None:
    env = _with_lists(suite, cache=cache)
    # `apt-get download` writes into its working directory and has no option for another one.
    run(["apt-get", "download", "-qq", *packages], timeout=_APT_SECONDS, env=env, cwd=into)


def dependencies(package: str, *, suite: str) -> list[str]:
    """Return the names of the packages of a Debian suite that a package depends on."""
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / "lock"):
        configuration = cache / "apt" / suite / "apt.conf"
        env = {"APT_CONFIG": str(configuration)} if configuration.exists() else _with_lists(suite, cache=cache)
        lines = run(["apt-cache", "depends", package], timeout=60, env=env).splitlines()
    return [line.partition(": ")[2] for line in lines if line.strip().startswith("Depends: ")]


def _with_lists(suite: str, *, cache: Path) -> dict[str, str]:
    """Fetch the package lists of a suite, and return the environment in which apt uses them."""
    private = cache / "apt" / suite
    for part in ("lists/partial", "archives/partial"):
        (private / part).mkdir(parents=True, exist_ok=True)
    (private / "status").touch()
    targets = run(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(REPO_URI) $(RELEASE) $(COMPONENT)",
            "Created-By: Packages",
        ],
        timeout=60,
    )
    (private / "sources.list").write_text(source_line(mirror_from_targets(targets), suite=suite))
    (private / "apt.conf").write_text(apt_configuration(private))
    env = {"APT_CONFIG": str(private / "apt.conf")}
    run(["apt-get", "update", "-qq", "--allow-releaseinfo-change"], timeout=_APT_SECONDS, env=env)
    return env


def mirror_from_targets(targets: str) -> str:
    """Return the Debian mirror of this machine.

    `targets` has one line per package index, `URI release component`. The mirror is the one that serves component
    `main` of a whole release: a name with a dash or slash (bookworm-updates, bookworm/updates) is a supplement, and
    third parties that publish for a release use other component names.
    """
    for line in targets.splitlines():
        uri, _, rest = line.partition(" ")
        release, _, component = rest.partition(" ")
        if component == "main" and re.fullmatch(r"[a-z]+", release):
            return uri
    raise NodeError("find the Debian mirror: apt has no source with component main of a Debian release")


def source_line(mirror: str, *, suite: str) -> str:
    """Return the apt source of one suite, signed by Debian's archive keys if they have a separate file."""
    options = f"[signed-by={_KEYRING}] " if _KEYRING.exists() else ""
    return f"deb {options}{mirror} {suite} main\n"


def apt_configuration(private: Path) -> str:
    """Return an apt configuration with separate lists and state below `private`.

    The machine's other settings, such as proxy and certificates, stay in force. No package counts as installed.
    """
    return "".join(
        f'{key} "{value}";\n'
        for key, value in {
            "Dir::State": private,
            "Dir::State::lists": private / "lists",
            "Dir::State::status": private / "status",
            "Dir::Cache": private,
            "Dir::Etc::sourcelist": private / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "APT::Sandbox::User": "root",  # the cache may be unreadable for apt's own user
            "APT::Update::Error-Mode": "any",  # an index that cannot be fetched is an error, not a warning
            "Acquire::Retries": "2",
            "Acquire::Languages": "none",
        }.items()
    )


def package_of_archive(filename: str) -> tuple[str, str]:
    """Split `name_version_architecture.deb`, where `%3a` stands for a colon in the version."""
    name, version, _ = filename.split("_", 2)
    return name, unquote(version)


def check_version(banner: str, *, least: tuple[int, ...]) -> None:
    """Raise NodeError if the first version number in a program's banner is below `least`."""
    found = re.search(r"\d+(?:\.\d+)*", banner)
    if found is None:
        raise NodeError(f"read a version: none in {banner!r}")
    if tuple(map(int, found[0].split("."))) < least:
        raise NodeError(f"version {found[0]} is older than {'.'.join(map(str, least))}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
