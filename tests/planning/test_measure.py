"""What a machine is measured to reach, and the cluster's file that comes of it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import yaml

from shoal.planning.cluster_file import read_cluster
from shoal.planning.probed_cluster import (
    bytes_of_row,
    differences,
    figures,
    measured_cluster,
    measured_file,
    nearest,
)
from shoal.planning.probes import SHAPES, Measurement, Timing, distinct_row_ids, measure


def about(value: float) -> Timing:
    return Timing(value, 0.9 * value, 1.1 * value)


def machine(**other) -> Measurement:
    """Two cores that copy 20 GB/s; rows move 10 GB/s and take 50 ns each beside that."""
    speed, fixed = 10e9, 50e-9
    read = {d: about(bytes_of_row(d) / 3 / speed + fixed / 3) for d in (16, 64, 128)}
    updated = {d: about(bytes_of_row(d) * 2 / 3 / speed + 2 * fixed / 3) for d in read}
    made = Measurement(
        device="cpu",
        on_gpu=False,
        cores=2,
        memory=16 * 10**9,
        copy=about(20e9),
        copy_all=about(30e9),
        stream=about(18e9),
        rows={d: (read[d], updated[d]) for d in read},
        products={"float32": {shape: about(40e9 + 1e9 * k) for k, shape in enumerate(SHAPES)}},
        attention=about(10e9),
        kernel=about(2e-6),
        launch=about(5e-6),
        cold=about(3e-6),
        threads=about(0.7),
        step=about(4e-4),
        links={
            **{"all_reduce": about(4e9), "all_to_all": about(2e9), "latency": about(30e-6)},
            **{"ddp": about(8e-4), "sharded": about(9e-4)},  # 200 and 100 us an exchange
        },
        disk={"read": about(2e9), "write": about(1e9), "latency": about(8e-5)},
    )
    return replace(made, **other)


def test_a_timing_is_a_median():
    one = Timing.from_seconds([4.0, 1.0, 2.0, 3.0, 100.0], units=12.0)
    assert one.value == 4.0 and one.low < one.value < one.high
    assert Timing.from_seconds([3.0, 1.0, 2.0]).value == 2.0


def test_bytes_of_a_row():
    """At least: read and written where it goes, a gradient, and row and state there and back."""
    for dim in (16, 128):
        assert 28 * dim <= bytes_of_row(dim) <= 28 * dim + 100


def test_the_file_holds_what_was_measured():
    found = measured_cluster(machine())
    reached = {name: value for name, (value, _) in figures(found).items()}
    assert reached["copies on a device"] == pytest.approx(18e9, rel=1e-3)
    assert reached["rows on a device"] == pytest.approx(10e9, rel=1e-3)
    assert reached["a row beside its bytes"] == pytest.approx(50e-9, rel=1e-3)
    assert reached["products, float32"] == pytest.approx(41.5e9, rel=1e-3)
    assert reached["between processes"] == pytest.approx(math.sqrt(8) * 1e9, rel=1e-3)
    assert reached["bandwidth of a host's memory"] == 30e9
    assert reached["until processes meet"] == pytest.approx(150e-6)
    assert reached["a core, by one more thread"] == 0.7 and reached["a row from a disk"] == 3e-6
    host = found.host
    assert (host.devices, host.cores, host.memory) == (2, 2, 16e9)
    assert host.inside.latency == pytest.approx(30e-6) and host.disk.write == 1e9
    share = found.efficiency.stream
    assert share.low < share.value < share.high == pytest.approx(0.99)


def test_the_file_is_read_back(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(measured_file(machine()))
    assert figures(read_cluster(file)) == figures(measured_cluster(machine()))
    assert file.read_text().startswith("# shoal plan --measure: 2 cores")


def test_without_a_core_rows_of_a_disk_are_the_presets():
    assert (
        measured_cluster(machine(cold=None)).efficiency.cold == nearest(machine()).efficiency.cold
    )


def test_the_nearest_preset():
    assert nearest(machine()).host.devices <= 16
    gpu = {"on_gpu": True, "devices": 1, "device_memory": 141 * 10**9}
    assert nearest(machine(device="NVIDIA H200", **gpu)).name == "DGX-H200"
    half = {**gpu, "device_memory": 80 * 10**9}
    assert nearest(machine(device="NVIDIA H100 80GB HBM3", **half)).host.device.name == "H100-SXM"
    assert nearest(machine(device="NVIDIA H100 PCIe", **half)).name == "8xH100-PCIe"
    assert nearest(machine(device="NVIDIA L4", **gpu)).host.device.name == "L4"
    unknown = nearest(machine(device="Another 3000", **gpu))  # by its memory
    assert unknown.host.device.memory == 141e9


def test_a_gpu_is_held_against_its_data_sheet():
    """A copy of 4.2 TB/s on an H200 is 88 % of the sheet's 4.8."""
    products = {"bfloat16": {(1, 1, 1): about(700e12)}, "float32": {(1, 1, 1): about(50e12)}}
    found = machine(
        device="NVIDIA H200",
        on_gpu=True,
        devices=1,
        device_memory=141 * 10**9,
        copy=about(4.2e12),
        stream=about(4.2e12),
        products=products,
        attention=about(300e12),
        to_device=about(50e9),
    )
    made = measured_cluster(found)
    assert made.efficiency.stream.value == pytest.approx(4.2 / 4.8, rel=1e-3)
    assert made.efficiency.gemm.value == pytest.approx(700 / 989, rel=1e-3)
    assert made.host.to_device == 50e9 and made.host.devices == 1


def test_rows_of_a_gpu_are_no_faster_than_its_memory():
    """Seconds of an H200, whose short rows would say 4.6 TB/s where a copy reaches 4.2."""
    nanoseconds = {16: (0.067, 0.254), 64: (0.149, 0.439), 128: (0.277, 0.744)}
    found = machine(
        device="NVIDIA H200",
        on_gpu=True,
        devices=1,
        device_memory=141 * 10**9,
        copy=about(4.22e12),
        stream=about(4.28e12),
        rows={d: (about(a * 1e-9), about(b * 1e-9)) for d, (a, b) in nanoseconds.items()},
        products={"bfloat16": {(1, 1, 1): about(625e12)}, "float32": {(1, 1, 1): about(50e12)}},
        attention=about(300e12),
        to_device=about(50e9),
    )
    reached = {name: value for name, (value, _) in figures(measured_cluster(found)).items()}
    assert reached["rows on a device"] == pytest.approx(4.22e12, rel=1e-3)
    fixed = reached["a row beside its bytes"]
    for dim, (read, updated) in nanoseconds.items():  # and each width is told well
        predicted = bytes_of_row(dim) / reached["rows on a device"] + fixed
        assert predicted == pytest.approx((read + updated) * 1e-9, rel=0.1)


@pytest.mark.parametrize("rows", [1000, 1024])
def test_rows_that_are_measured_are_distinct(rows: int):
    sets = distinct_row_ids(rows, 1000, torch.device("cpu"))
    assert [len(set(ids.tolist())) for ids in sets] == [1000] * 4
    assert max(int(ids.max()) for ids in sets) < rows and not sets[0].equal(sets[1])


def test_what_differs_is_pointed_out():
    near = nearest(machine())
    text = differences(machine())
    lines = {line[:30].strip(): line for line in text.splitlines()}
    assert text.splitlines()[0].split()[:3] == ["figure", near.name, "measured"]
    assert lines["a message"].endswith("differs")  # 30 us beside 20
    same = [line for line in text.splitlines() if "1.00" in line]
    assert not any(line.endswith("differs") for line in same)


@pytest.mark.slow
def test_this_machine(tmp_path):
    """Every figure is there, and a file comes of it; none of them is judged."""
    parts: list[str] = []
    found = measure(folder=tmp_path, scale=0.02, report=parts.append)
    assert parts == [
        *("memory", "rows", "products", "layers", "operations", "links between processes", "disk")
    ]
    figures_found = figures(read_cluster(yaml.safe_load(measured_file(found))))
    assert all(math.isfinite(value) and value > 0 for value, _ in figures_found.values())
    assert set(found.rows) == {16, 64, 128}
    assert set(found.links) == {"all_reduce", "all_to_all", "latency", "ddp", "sharded"}
    assert not list(tmp_path.iterdir())  # nothing is left on the disk
