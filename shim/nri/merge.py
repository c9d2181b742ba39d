"""Merges the answers of all plugins for a container, in the order of the plugins.

A later plugin sees the changes of earlier plugins. Two plugins must not set the same field, unless the second plugin
also removes it (`-name`).
"""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

from google.protobuf.message import Message

from shim.api.nri import nri_pb2 as nri
from shim.domain.errors import FailedPrecondition
from shim.nri.fields import (
    HOOKS,
    KEYED,
    KEYED_RESOURCES,
    RDT,
    REMOVAL,
    RESOURCES,
    SINGLES,
    Keyed,
    Single,
    copy_field,
    is_set,
    value_at,
)
from shim.nri.owners import Field, Owners

MAX_ITEMS = 4096
"""Maximum changes of a field with several values, by all plugins together."""


class Updates:
    """Plugins' updates of limits, merged by container."""

    def __init__(self, owners: Owners | None = None) -> None:
        self.owners = owners or Owners()
        self.by_container: dict[str, nri.ContainerUpdate] = {}

    def add(self, updates: Iterable[nri.ContainerUpdate], *, plugin: str) -> None:
        """Merge the updates of a plugin.

        Raise FailedPrecondition if another plugin has set the same field. Drop the update instead if it may fail.
        """
        for update in updates:
            known = self.by_container.get(update.container_id)
            merged = nri.ContainerUpdate()
            merged.CopyFrom(known or nri.ContainerUpdate(container_id=update.container_id, ignore_failure=True))
            merged.ignore_failure = merged.ignore_failure and update.ignore_failure
            try:
                merge_resources(
                    merged.linux.resources,
                    update.linux.resources,
                    container=update.container_id,
                    plugin=plugin,
                    owners=self.owners,
                )
            except FailedPrecondition:
                if not update.ignore_failure:
                    raise
                continue
            self.by_container[update.container_id] = merged


class Adjustments:
    """The plugins' changes to a new container."""

    def __init__(self, request: nri.CreateContainerRequest) -> None:
        """`request` goes to each plugin; `add` applies the answer to it, so that the next plugin sees the changes."""
        self.request = request
        self.asked = nri.Container()
        self.asked.CopyFrom(request.container)
        """The container before all changes."""
        self.adjust = nri.ContainerAdjustment()
        """All changes. An item whose key begins with REMOVAL stands for a removal."""
        self.owners = Owners()
        self.updates = Updates(self.owners)

    def add(self, answer: nri.CreateContainerResponse, *, plugin: str) -> None:
        """Merge the answer of a plugin. Raise FailedPrecondition if it conflicts with an earlier answer."""
        container, adjust = self.request.container, answer.adjust

        for row in KEYED:
            self._merge_keyed(row, adjust, plugin=plugin)
        self._merge_args(adjust.args, plugin=plugin)
        for single in SINGLES:
            if is_set(adjust, single.path):
                self.owners.claim(container.id, single.field, plugin)
                copy_field(adjust, self.adjust, single.path)
                copy_field(adjust, container, single.path)
        self._merge_hooks(adjust.hooks, plugin=plugin)
        self._merge_rdt(adjust.linux.rdt, plugin=plugin)
        if adjust.linux.HasField("resources"):
            resources = adjust.linux.resources
            merge_resources(
                self.adjust.linux.resources, resources, container=container.id, plugin=plugin, owners=self.owners
            )
            merge_resources(container.linux.resources, resources)
            self.adjust.linux.resources.devices.extend(resources.devices)
            container.linux.resources.devices.extend(resources.devices)
        if any(update.container_id == container.id for update in answer.update):
            raise FailedPrecondition(
                f'plugin "{plugin}" asked for an update of container {container.id} while it is created'
            )
        self.updates.add(answer.update, plugin=plugin)

    def _merge_keyed(self, row: Keyed, adjust: nri.ContainerAdjustment, *, plugin: str) -> None:
        removed, added = _split(row, value_at(adjust, row.path))
        if not removed and not added:
            return
        into = _items(value_at(self.adjust, row.path), row.key)
        for key in removed:
            self.owners.clear(self.request.container.id, row.field, key=key)
            into.pop(key, None)
            into[REMOVAL + key] = _marker(row, key)
        for key, item in added.items():
            self.owners.claim(self.request.container.id, row.field, plugin, key=key)
            into.pop(REMOVAL + key, None)
            into[key] = item
        if len(into) > MAX_ITEMS:
            raise FailedPrecondition(f"plugins have changed more than {MAX_ITEMS} of {row.path}")
        _replace(self.adjust, row, into)
        self._show(row, removed={*removed, *added}, added=added)

    def _show(self, row: Keyed, *, removed: set[str], added: Mapping[str, Any]) -> None:
        """Apply a change to the container in the request for the next plugins."""
        container = self.request.container
        if row.field is Field.Env:
            kept = [line for line in container.env if line.partition("=")[0] not in removed]
            del container.env[:]
            container.env.extend([*kept, *(f"{item.key}={item.value}" for item in added.values())])
            return
        present = _items(value_at(container, row.path), row.key)
        _replace(container, row, {key: item for key, item in present.items() if key not in removed} | dict(added))

    def _merge_args(self, args: Iterable[str], *, plugin: str) -> None:
        words = list(args)
        if not words:
            return
        if not words[0]:  # replaces the arguments of another plugin
            self.owners.clear(self.request.container.id, Field.Args)
            del words[0]
        self.owners.claim(self.request.container.id, Field.Args, plugin)
        for message in (self.adjust, self.request.container):
            del message.args[:]
            message.args.extend(words)

    def _merge_hooks(self, hooks: nri.Hooks, *, plugin: str) -> None:
        added = False
        for name in HOOKS:
            theirs = getattr(hooks, name)
            if theirs:
                added = True
                getattr(self.adjust.hooks, name).extend(theirs)
                getattr(self.request.container.hooks, name).extend(theirs)
        if added:
            self.owners.share(self.request.container.id, Field.OciHooks, plugin)

    def _merge_rdt(self, rdt: nri.LinuxRdt, *, plugin: str) -> None:
        if not rdt.ListFields():
            return
        mine = self.adjust.linux.rdt
        if rdt.remove:
            for row in RDT:
                self.owners.clear(self.request.container.id, row.field)
            mine.Clear()
            mine.remove = True
            self.request.container.linux.rdt.Clear()
        for row in RDT:
            if is_set(rdt, row.path):
                self.owners.claim(self.request.container.id, row.field, plugin)
                copy_field(rdt, mine, row.path)
                copy_field(rdt, self.request.container.linux.rdt, row.path)


def merge_resources(
    into: nri.LinuxResources,
    theirs: nri.LinuxResources,
    *,
    container: str = "",
    plugin: str = "",
    owners: Owners | None = None,
) -> None:
    """Merge limits, except device rules, from `theirs` into `into`. With `owners`, `plugin` claims each merged field.

    Raise FailedPrecondition if another plugin owns a field; then nothing is merged.
    """
    singles = [row for row in RESOURCES if is_set(theirs, row.path)]
    keyed = [(row, _items(value_at(theirs, row.path), row.key)) for row in KEYED_RESOURCES]
    if owners is not None:
        _claim_all(owners, singles, keyed, container=container, plugin=plugin)
    for row in singles:
        copy_field(theirs, into, row.path)
    for several, items in keyed:
        if items:
            _replace(into, several, _items(value_at(into, several.path), several.key) | items)


def _claim_all(
    owners: Owners,
    singles: Iterable[Single],
    keyed: Iterable[tuple[Keyed, Mapping[str, Any]]],
    *,
    container: str,
    plugin: str,
) -> None:
    before = nri.OwningPlugins()
    before.CopyFrom(owners.message)
    try:
        for row in singles:
            owners.claim(container, row.field, plugin)
        for several, items in keyed:
            for key in items:
                owners.claim(container, several.field, plugin, key=key)
    except FailedPrecondition:
        owners.message.CopyFrom(before)
        raise


def _split(row: Keyed, found: Any) -> tuple[list[str], dict[str, Any]]:
    """Return the keys to remove, and the items to add by key."""
    removed, added = [], {}
    for key, item in _items(found, row.key).items():
        if row.removable and key.startswith(REMOVAL):
            removed.append(key.removeprefix(REMOVAL))
        else:
            added[key] = item
    return removed, added


def _items(found: Any, key: str) -> dict[str, Any]:
    """Return copies of the items of a list or map by key, in order. The last item of a key wins."""
    if not key:
        return {name: _copied(found[name]) for name in found}
    return {getattr(item, key): _copied(item) for item in found}


def _copied(item: Any) -> Any:
    if not isinstance(item, Message):
        return item
    copy = type(item)()
    copy.CopyFrom(item)
    return copy


def _marker(row: Keyed, key: str) -> Any:
    """Return the item that marks the removal of a key."""
    match row.field:
        case Field.Annotations | Field.Sysctl:
            return ""
        case Field.LinuxNetDevices:
            return nri.LinuxNetDevice()
        case Field.Mounts:
            return nri.Mount(destination=REMOVAL + key)
        case Field.Env:
            return nri.KeyValue(key=REMOVAL + key)
        case Field.Devices:
            return nri.LinuxDevice(path=REMOVAL + key)
        case _:
            return nri.LinuxNamespace(type=REMOVAL + key)


def _replace(message: Message, row: Keyed, items: Mapping[str, Any]) -> None:
    target: Any = value_at(message, row.path)
    if row.key:
        del target[:]
        target.extend(items.values())
        return
    target.clear()
    _fill(target, items)


def _fill(target: MutableMapping[str, Any], items: Mapping[str, Any]) -> None:
    for key, item in items.items():
        if isinstance(item, Message):
            target[key].CopyFrom(item)
        else:
            target[key] = item
