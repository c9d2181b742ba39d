"""The report as text and JSON."""

import msgspec
import pytest

from integration.bench.figures import AtOnce, Bar, Call, Compared, Footprint, Images, Load, Phase, Ratio
from integration.bench.report import Docker, Machine, Other, Report, as_json, as_table

OTHERS = [Other(name="containerd", version="containerd 2.1.9")]


def report(*, left_behind: list[str] | None = None, others: list[Other] | None = None) -> Report:
    call = Call(name="CNI ADD", side="floor", count=15, median_ms=37.00049, p95_ms=50.25)
    ratio = Ratio(
        name="RunPodSandbox",
        floor_ms=190.0,
        server_ms=200.0,
        of_medians=1.0526,
        of_pairs=1.0444,
        of_quartiles=1.031,
    )
    pull = Ratio(
        name="PullImage, new image", floor_ms=50.0, server_ms=53.0, of_medians=1.06, of_pairs=1.05, of_quartiles=1.07
    )
    machine = Machine(cpus=2, memory_mib=24105, kernel="6.1", python="3.11.7", load_before=0.5, load_after=1.5)
    return Report(
        machine=machine,
        engine=Docker(version="28.5.2", api="1.44", storage="overlay2", cgroups="v1 by cgroupfs"),
        rounds=15,
        others=others or [],
        phases=[Phase(pods=0, calls=[call], ratios=[ratio]), Phase(pods=50, calls=[call], ratios=[ratio])],
        footprints=[Footprint(when="after start", rss_mib=61.2, threads=9, descriptors=20, cpu_seconds=0.9)],
        load=Load(pods=50, at_once=8, up_seconds=12.34, down_seconds=8.76),
        at_once=AtOnce(pods=40, at_once=8, floor_seconds=6.44, server_seconds=5.36),
        images=Images(pulls=[pull], present=200, list_ms=1.26),
        compared=[
            Compared(
                name="ExecSync",
                took_ms={"floor": 40.0, "server": 30.0, "containerd": 50.0},
                of_floor={"floor": 1.0, "server": 0.75, "containerd": 1.25},
            ),
            Compared(name="ListPodSandbox", took_ms={"server": 1.04, "containerd": 0.66}, of_floor={}),
        ],
        left_behind=left_behind or [],
        bars=[
            Bar(name="stop and removal, alone", unit="x floor", limit=0.85, value=0.8449, met=True),
            Bar(name="server RSS, after start", unit="MiB", limit=90.0, value=91.0, met=False),
        ],
    )


@pytest.mark.parametrize(
    "line",
    [
        ["Docker", "Engine", "28.5.2,", "API", "1.44,", "overlay2,", "cgroups", "v1", "by", "cgroupfs"],
        ["RunPodSandbox", "190.0", "200.0", "1.05", "1.04", "1.03"],
        ["CNI", "ADD", "37.0", "50.2", "15"],
        ["floor,", "50", "pods", "present", "median", "p95", "n"],
        ["after", "start", "61.2", "9", "20", "0.9"],
        ["50", "pods,", "8", "at", "a", "time:", "up", "in", "12.3", "s,", "down", "in", "8.8", "s"],
        [
            "40",
            "pods,",
            "8",
            "at",
            "a",
            "time:",
            "up",
            "in",
            "6.4",
            "s",
            "by",
            "the",
            "floor,",
            "in",
            "5.4",
            "s",
            "by",
            "the",
            "server",
        ],
        ["PullImage,", "new", "image", "50.0", "53.0", "1.06", "1.05", "1.07"],
        ["ListImages,", "200", "images", "1.3"],
        ["stop", "and", "removal,", "alone", "0.85", "0.84", "x", "floor", "met"],
        ["server", "RSS,", "after", "start", "90.00", "91.00", "MiB", "MISSED"],
    ],
    ids=lambda line: " ".join(line[:2]),
)
def test_the_table_has_every_kind_of_figure(line: list[str]) -> None:
    assert line in [row.split() for row in as_table(report()).splitlines()]


def test_leftovers_are_reported() -> None:
    assert "left behind" not in as_table(report())
    assert as_table(report(left_behind=["leases: 10.88.0.7"])).endswith("left behind: leases: 10.88.0.7")


def test_other_servers_are_compared_in_a_table() -> None:
    rows = [row.split() for row in as_table(report(others=OTHERS)).splitlines()]

    assert ["beside", "containerd:", "containerd", "2.1.9"] in rows
    assert ["medians,", "and", "ratios", "to", "the", "floor", "floor", "server", "containerd"] in rows
    assert ["ExecSync", "40.0", "30.0", "0.75", "50.0", "1.25"] in rows
    assert ["ListPodSandbox", "1.0", "0.7"] in rows


def test_without_other_servers_there_is_no_table_of_all_sides() -> None:
    assert "containerd" not in as_table(report())


def test_no_line_is_wider_than_a_page() -> None:
    assert max(map(len, as_table(report(others=OTHERS * 2)).splitlines())) <= 120


def test_the_json_can_be_decoded() -> None:
    written = as_json(report())
    read = msgspec.json.decode(written, type=Report)

    assert read.machine == report().machine
    assert [bar.value for bar in read.bars] == [0.845, 91.0]
    assert read.phases[1].calls[0].median_ms == 37.0
    assert written.endswith(b"}\n")
    assert written.count(b"\n") > 50
