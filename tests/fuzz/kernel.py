"""The kernel's log: other programs write to it, and its records have names that containers choose."""

import re

from hypothesis import strategies as st

from shim.cgroup.kernel_log import kill_of
from tests.fuzz.target import Target, pure

ID = "5be07c" * 10 + "4d2f"
WORDS = (
    b"6,1042,49706164294,-;",
    b"14,1,2,c,caller=T7;",
    b"oom-kill:constraint=CONSTRAINT_MEMCG,",
    b"Memory cgroup out of memory: ",
    b"Out of memory (oom_kill_allocating_task): ",
    b"Killed process 4711 (sh) ",
    b"Tasks in ",
    b" are going to be killed due to memory.oom.group set",
    b",task_memcg=/",
    b",task=",
    f"/kubepods/{ID}".encode(),
    f"/kubepods.slice/docker-{ID}.scope".encode(),
    b"\n ",
)


def _record(data: bytes) -> None:
    kill = kill_of(data)
    if kill is None:
        return
    assert re.match(rb"[0-7],", data), "only the kernel's own records count"
    assert bool(kill.containers) != bool(kill.pid)
    assert 0 <= kill.pid < 10**10
    assert all(re.fullmatch("[0-9a-f]{64}", each) for each in kill.containers)


TARGETS = (
    Target(
        name="kernel-log",
        corpus=[
            f"6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/kubepods/{ID},task=sh,pid=5,uid=0\n".encode(),
            b"3,1,2,-;Memory cgroup out of memory: Killed process 5 (sh) total-vm:1kB\n SUBSYSTEM=memory\n",
            f"6,1,2,-;Tasks in /docker-{ID}.scope are going to be killed due to memory.oom.group set\n".encode(),
        ],
        words=WORDS,
        declared=(),
        open=pure(_record),
        strategy=st.lists(st.sampled_from(WORDS) | st.binary(max_size=8), max_size=12).map(b"".join),
        enormous=(lambda: WORDS[0] + WORDS[2] + WORDS[8] * 100_000, lambda: WORDS[0] + WORDS[6] + WORDS[10] * 20_000),
    ),
)
