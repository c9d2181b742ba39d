"""Prepares a container before runc creates it: applies changes of NRI plugins, and sets up a user namespace.

All mounts are made in a mount namespace that ends with runc's process, except the container's root: it replaces
Docker's own mount, so that `docker cp` sees it and Docker unmounts it.

It imports little, because the program starts anew for each container.
"""

from __future__ import annotations

import errno
import os
import stat

from shim.base import proc
from shim.oci_runtime import json_text, kernel
from shim.oci_runtime.layers import OVERLAY, Covered, FileIds, layers_of, mapped_clone, read_only_options
from shim.oci_runtime.order import OrderError
from shim.oci_runtime.user_namespace import mapping_of, pod_of

TYPE_CHECKING = False  # importing typing takes as long as this whole package
if TYPE_CHECKING:
    from shim.oci_runtime.layers import Layers
    from shim.oci_runtime.order import Json, Order, UserNamespace
    from shim.oci_runtime.user_namespace import Pod

PLACE = "/run/pydockershim-oci"
"""Where runc sees the mounts, in a tmpfs of its mount namespace.

On the host the directory holds only an empty `rootfs`, because `runc exec` changes to a directory of this name.
"""
ROOTFS = f"{PLACE}/rootfs"
_SHM = "/dev/shm"  # noqa: S108 - the container path
"""Docker's tmpfs for it is open to all users, and an ipc namespace's own tmpfs needs no mapping."""
_ANY_GROUP = "0 2147483647"
"""Docker's `net.ipv4.ping_group_range`, whose groups exceed the namespace's range."""
_MODE = 0o711
_READ_ONLY = {"ro", "rro"}


def prepare(order: Order, *, bundle: str, state_root: str, runtime: str) -> None:
    """Change the bundle of a container as ordered. A failure is undone and raised as OrderError or OSError.

    Afterwards this process is in the mount namespace where `runtime` (runc) must run.
    """
    path = f"{bundle}/config.json"
    config = read_json(path)
    if order.adjustment:
        from shim.oci_runtime.adjust import adjust  # noqa: PLC0415 - few containers have it

        adjust(config, order.adjustment, runtime=runtime)
    if order.user_namespace is None:
        replace_json(path, config)
    else:
        _enter_user_namespace(order, order.user_namespace, config, bundle=bundle, state_root=state_root)


def read_json(path: str) -> Json:
    """Read a file that containerd has written."""
    with open(path, "rb") as file:
        found: Json = json_text.read(file.read())
        return found


def replace_json(path: str, content: Json) -> None:
    """Replace a file atomically."""
    temporary = f"{path}.new"
    with open(temporary, "wb") as file:
        os.fchmod(file.fileno(), stat.S_IMODE(os.stat(path).st_mode))
        file.write(json_text.write(content))
    os.replace(temporary, path)


def _enter_user_namespace(order: Order, wanted: UserNamespace, config: Json, *, bundle: str, state_root: str) -> None:
    """Put the container into its user namespace, and give its root the standard streams."""
    path = f"{bundle}/config.json"
    pod = pod_of(wanted, state_root=state_root) if wanted.pause else None
    mapping = mapping_of(wanted)
    root = os.path.join(bundle, config["root"]["path"])
    layers = layers_of(_mount_at(root))
    binds = _Binds(config, mapping=mapping, order=order, store=layers.directory)
    _change_namespaces(config, wanted, pod=pod)
    config["root"]["path"] = ROOTFS
    _mount_all(root, layers, binds, wanted=wanted, mapping=mapping)
    replace_json(path, config)
    _own_streams(wanted)


def is_mapped(mount: Json, order: Order) -> bool:
    """Return whether a bind mount gets the pod's ids.

    Mounts that Docker adds from elsewhere, for CDI devices, do not.
    """
    path = mount["destination"]
    is_dockers = mount["source"].startswith(f"{order.docker_root}/")
    return path in order.mapped or (is_dockers and path not in (_SHM, *order.kept))


class _Binds:
    """The bind mounts of a container: clones of their sources, made while this process is in the host's namespace.

    A clone stays in the peer group of its source, so mount propagation works as before.
    """

    def __init__(self, config: Json, *, mapping: int, order: Order, store: str) -> None:
        """Clone the sources. `store` is the directory of layers of Docker's images."""
        self._store = store
        self._trees: list[tuple[Json, int, bool]] = []
        self._images: list[tuple[Json, Layers, int, str]] = []
        for mount in config["mounts"]:
            if mount.get("type") == "bind":
                self._add(mount, mapping=mapping, keeps_ids=not is_mapped(mount, order))

    def _add(self, mount: Json, *, mapping: int, keeps_ids: bool) -> None:
        source = os.open(mount["source"], os.O_PATH | os.O_CLOEXEC)
        try:
            tree = kernel.clone_tree(source, recursive="rbind" in mount.get("options", ()))
            try:
                if not keeps_ids:
                    kernel.map_ids(tree, mapping, private=False)
            except OSError as error:
                os.close(tree)
                if error.errno != errno.EINVAL:
                    raise
                # An image volume is an overlay, which cannot be id-mapped. Its layers can, like those of the root.
                self._add_image(mount, source, mapping=mapping, cause=error)
                return
            self._trees.append((mount, tree, stat.S_ISDIR(os.fstat(source).st_mode)))
        finally:
            os.close(source)

    def _add_image(self, mount: Json, source: int, *, mapping: int, cause: OSError) -> None:
        found = _mount_of(source)
        if found.kind != OVERLAY:
            kind = os.fsdecode(found.kind)
            raise OSError(f"the mount at {mount['destination']} is on {kind}, which has no id-mapped mounts: {cause}")
        layers = layers_of(found)
        if layers.directory != self._store or not _READ_ONLY & {*mount.get("options", ())}:
            # A read-only mount of the layers would miss later writes to this overlay.
            raise OSError(f"the mount at {mount['destination']} is on an overlay that is no image volume: {cause}")
        inside = os.path.relpath(os.readlink(f"/proc/self/fd/{source}"), found.point)
        below = os.path.normpath(f"{found.root}/{inside}")
        self._images.append((mount, layers, mapped_clone(layers, mapping), below))

    def attach(self, directory: str) -> None:
        """Attach the clones below a directory, and make them the sources of the container's mounts."""
        os.mkdir(directory, _MODE)
        for number, (mount, layers, tree, below) in enumerate(self._images):
            whole, at = f"{directory}/image{number}", f"{directory}/volume{number}"
            os.mkdir(whole, _MODE)
            with Covered(layers, tree):
                options = read_only_options(layers, empty=directory)
                kernel.mount("overlay", whole, kind="overlay", flags=kernel.MS_RDONLY, data=options)
            opened = os.open(whole, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            inside = kernel.open_inside(opened, below)
            self._trees.append((mount, kernel.clone_tree(inside), stat.S_ISDIR(os.fstat(inside).st_mode)))
            mount["source"] = at
        for number, (mount, tree, is_directory) in enumerate(self._trees):
            at = f"{directory}/{number}"
            if is_directory:
                os.mkdir(at, _MODE)
            else:
                os.close(os.open(at, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
            kernel.attach(tree, at)
            mount["source"] = at


def _mount_all(root: str, layers: Layers, binds: _Binds, *, wanted: UserNamespace, mapping: int) -> None:
    tree = mapped_clone(layers, mapping)
    for directory in (PLACE, ROOTFS):
        try:
            os.mkdir(directory, _MODE)
        except FileExistsError:
            pass
        _check_own(directory)
    host = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    kernel.unmount(root)
    try:
        kernel.unshare(kernel.CLONE_NEWNS)
        private = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        # The host's mounts still propagate here, but mounts made here do not propagate to the host.
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_SLAVE)
        kernel.mount("tmpfs", PLACE, kind="tmpfs", data=b"mode=711")
        os.mkdir(ROOTFS, _MODE)
        with Covered(layers, tree), FileIds(wanted.uid, wanted.gid):
            # The kernel creates the work directory with the ids of the mounting process.
            kernel.mount("overlay", ROOTFS, kind="overlay", data=layers.options)
        copy = _clone_of(ROOTFS)
        kernel.set_namespace(host, kernel.CLONE_NEWNS)
        kernel.attach(copy, root)
    except BaseException:
        _mount_again(root, layers, host=host)
        raise
    kernel.set_namespace(private, kernel.CLONE_NEWNS)
    binds.attach(f"{PLACE}/mounts")


def _mount_again(root: str, layers: Layers, *, host: int) -> None:
    """Restore Docker's mount of the root, in the host's mount namespace."""
    kernel.set_namespace(host, kernel.CLONE_NEWNS)
    os.chdir(layers.directory)
    kernel.mount("overlay", root, kind="overlay", data=layers.options)
    os.chdir("/")


def _mount_at(root: str) -> proc.Mount:
    """Return Docker's mount of the container's root."""
    found = next((mount for mount in reversed(_mounts()) if mount.point == root), None)
    if found is None:
        raise OSError(f"the root {root} is not a mount, as it is with Docker's storage driver overlay2")
    return found


def _mounts() -> list[proc.Mount]:
    with open("/proc/self/mountinfo", "rb") as table:
        return list(proc.mounts(table.read()))


def _mount_of(opened: int) -> proc.Mount:
    """Return the mount that holds an open file."""
    with open(f"/proc/self/fdinfo/{opened}", "rb") as description:
        identity = proc.value_of(description.read(), b"mnt_id")
    found = next((mount for mount in _mounts() if mount.id == identity), None)
    if found is None:
        raise OSError(f"{os.readlink(f'/proc/self/fd/{opened}')} was unmounted while the container was created")
    return found


def _clone_of(path: str) -> int:
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return kernel.clone_tree(opened)
    finally:
        os.close(opened)


def _check_own(path: str) -> None:
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022:
        raise OrderError(f"{path} must be a directory of root that nobody else can write")


def _change_namespaces(config: Json, wanted: UserNamespace, *, pod: Pod | None) -> None:
    """Put the container into the pod's user namespace; without a pod, runc creates the namespace."""
    linux = config["linux"]
    kept = [each for each in linux["namespaces"] if each["type"] != "user" and not _is_network_of_host(each, pod)]
    # runc replaces this process, so it finds the descriptor under this pid. Newer versions (1.1.15 does) take any path
    # that begins with "/proc/PID/" for /proc/PID/ns/user, and compare the mapping with PID's.
    path = {} if pod is None else {"path": f"//proc/{os.getpid()}/fd/{pod.users}"}
    linux["namespaces"] = [*kept, {"type": "user", **path}]
    linux["uidMappings"] = [{"containerID": 0, "hostID": wanted.uid, "size": wanted.uids}]
    linux["gidMappings"] = [{"containerID": 0, "hostID": wanted.gid, "size": wanted.gids}]
    sysctl = linux.get("sysctl") or {}
    if sysctl.get("net.ipv4.ping_group_range") == _ANY_GROUP:
        sysctl["net.ipv4.ping_group_range"] = f"0 {wanted.gids - 1}"
    if not any(each["type"] == "network" for each in kept):
        _bind_sysfs(config["mounts"])


def _is_network_of_host(namespace: Json, pod: Pod | None) -> bool:
    """Return whether `namespace` is the path of the host's network, which a process in a user namespace may not enter.

    With Engine 20.10 a pause container has the path of Docker's own namespace. Other containers have the path of the
    pause container's.
    """
    if namespace["type"] != "network" or not namespace.get("path"):
        return False
    if pod is not None:
        return pod.has_network_of_host
    return os.stat(namespace["path"]).st_ino == os.stat("/proc/self/ns/net").st_ino


def _bind_sysfs(mounts: list[Json]) -> None:
    """Bind-mount the host's sysfs: only the owner of the network namespace can mount a new sysfs."""
    for mount in mounts:
        if mount.get("type") == "sysfs":
            mount.update(type="bind", source="/sys", options=["rbind", "ro", "rro", "nosuid", "nodev", "noexec"])


def _own_streams(wanted: UserNamespace) -> None:
    """Give the pipes of the standard streams to the container's root, so that it can open /dev/stdout."""
    for stream in (0, 1, 2):
        if stat.S_ISFIFO(os.fstat(stream).st_mode):
            os.fchown(stream, wanted.uid, wanted.gid)
