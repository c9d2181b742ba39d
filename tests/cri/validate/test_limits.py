from typing import Any

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.cri.validate.limits import resources
from shim.domain.errors import InvalidArgument

GOOD: dict[str, dict[str, Any]] = {
    "nothing": {},
    "least": {"cpu_period": 1000, "cpu_quota": 1000, "cpu_shares": 2, "memory_limit_in_bytes": 1},
    "most": {"cpu_period": 1_000_000, "cpu_shares": 262_144, "oom_score_adj": 1000, "cpuset_cpus": "8191"},
    "no limits": {"cpu_quota": -1, "memory_limit_in_bytes": -1, "memory_swap_limit_in_bytes": -1},
    "sets": {"cpuset_cpus": "0-3,8,10-11", "cpuset_mems": "0,1"},
    "files": {"unified": {"memory.oom.group": "1"}},
    "huge pages": {"hugepage_limits": [pb.HugepageLimit(page_size="2MB"), pb.HugepageLimit(page_size="1GB")]},
}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "quota": ({"cpu_quota": -2}, r"linux\.cpu_quota -2"),
    "quota below 1 ms": ({"cpu_quota": 999}, r"linux\.cpu_quota 999"),
    "period below 1 ms": ({"cpu_period": 999}, r"linux\.cpu_period 999"),
    "period above 1 s": ({"cpu_period": 1_000_001}, r"linux\.cpu_period 1000001"),
    "one share": ({"cpu_shares": 1}, r"linux\.cpu_shares 1 "),
    "too many shares": ({"cpu_shares": 262_145}, r"linux\.cpu_shares 262145"),
    "cpus in words": ({"cpuset_cpus": "all"}, r"linux\.cpuset_cpus 'all'"),
    "cpus backwards": ({"cpuset_cpus": "3-1"}, r"linux\.cpuset_cpus: 3-1"),
    "cpus with a gap": ({"cpuset_cpus": "0,,1"}, r"linux\.cpuset_cpus '0,,1'"),
    "cpus with a newline": ({"cpuset_cpus": "0\n"}, r"linux\.cpuset_cpus"),
    "as many cpus as fill the memory": ({"cpuset_cpus": "0-999999999"}, r"linux\.cpuset_cpus: 0-999999999"),
    "more digits than there are": ({"cpuset_cpus": "9" * 5000}, r"linux\.cpuset_cpus"),
    "a list longer than a page": ({"cpuset_cpus": "0," * 5000 + "0"}, r"linux\.cpuset_cpus has 10001 characters"),
    "mems": ({"cpuset_mems": "-1"}, r"linux\.cpuset_mems '-1'"),
    "memory": ({"memory_limit_in_bytes": -2}, r"linux\.memory_limit_in_bytes -2"),
    "swap": ({"memory_swap_limit_in_bytes": -2}, r"linux\.memory_swap_limit_in_bytes -2"),
    "oom score": ({"oom_score_adj": 1001}, r"linux\.oom_score_adj 1001"),
    "huge pages": ({"hugepage_limits": [pb.HugepageLimit(page_size="x")]}, r"linux\.hugepage_limits\[0\]\.page_size"),
    "unified": ({"unified": {"../x": "1"}}, r"linux\.unified: '\.\./x'"),
    "pids": ({"unified": {"pids.max": "0"}}, r"linux\.unified\['pids\.max'\]"),
}


@pytest.mark.parametrize("fields", GOOD.values(), ids=GOOD)
def test_valid_limits_pass(fields: dict[str, Any]) -> None:
    resources(pb.LinuxContainerResources(**fields), field="linux")


@pytest.mark.parametrize(("fields", "named"), BAD.values(), ids=BAD)
def test_invalid_limits_are_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        resources(pb.LinuxContainerResources(**fields), field="linux")
