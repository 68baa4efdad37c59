"""Clusters from files: units, presets, and one clear error for nonsense."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shoal.config.errors import ConfigError
from shoal.planning.cluster_file import read_cluster
from shoal.planning.cluster_values import read_quantity
from shoal.planning.presets import CLUSTERS, DEVICES, read_presets, this_machine

OWN = {
    "devices": 2,
    "device": {"memory": "10GB", "bandwidth": "1TB/s", "flops": {"float32": "10TFLOPS"}},
    "inside": {"kind": "pcie", "bandwidth": "32GB/s"},
    "memory": "64GB",
    "bandwidth": "100GB/s",
}


def test_units():
    assert read_quantity("400Gb/s", "bytes/s", "x") == 50e9
    assert read_quantity("3.35 TB/s", "bytes/s", "x") == 3.35e12
    assert read_quantity("5us", "seconds", "x") == pytest.approx(5e-6)
    assert read_quantity("1.5GiB", "bytes", "x") == 1.5 * 2**30
    assert read_quantity(7, "count", "x") == 7


def test_a_file(tmp_path: Path):
    path = tmp_path / "ours.yaml"
    path.write_text(
        "hosts: 8\n"
        "host: {preset: DGX-H100, price: 70, device: {preset: H100-SXM, memory: 96GB}}\n"
        "between: {kind: infiniband, bandwidth: 200Gb/s, latency: 7us}\n"
        "efficiency: {gemm: 0.5, gather: [0.6, 0.4, 0.7], kernel: 3us}\n"
    )
    found = read_cluster(path)
    assert (found.name, found.hosts, found.devices) == ("ours", 8, 64)
    assert found.host.price == 70 and found.host.device.memory == 96e9
    assert found.host.device.bandwidth == DEVICES["H100-SXM"].bandwidth  # as the preset has it
    assert found.between is not None and found.between.bandwidth == 25e9
    rates = found.efficiency
    assert rates.gemm.value == 0.5 and (rates.gather.low, rates.gather.high) == (0.4, 0.7)
    assert rates.kernel.value == pytest.approx(3e-6)
    assert rates.attention == CLUSTERS["DGX-H100"].efficiency.attention


def test_a_machine_of_ones_own():
    found = read_cluster({"host": OWN})
    assert found.devices == 2 and found.host.on_gpu
    assert found.host.device.flops == {"float32": 10e12}


@pytest.mark.parametrize("name", CLUSTERS)
def test_presets_make_sense(name: str):
    found = read_cluster(name)
    host, device = found.host, found.host.device
    assert host.memory > 0 and host.inside.bandwidth > 0 and device.bandwidth > 0
    assert 0 < device.flops["float32"] <= device.flops["bfloat16"]
    assert all(one.low <= one.value <= one.high for one in found.efficiency.named().values())


PRESETS = {
    "devices": {"A-SXM": OWN["device"]},
    "hosts": {"two": {**OWN, "device": "A-SXM", "price": 3}},
    "efficiency": {
        "gpu": {
            name: {"value": 0.5, "spread": 0.1, "source": "a test"}
            for name in CLUSTERS["DGX-H100"].efficiency.named()
        },
        "core": {"gemm": {"value": 0.4, "spread": 0.2}},
    },
}


def test_presets_are_read_as_a_cluster_file_is():
    devices, efficiency, clusters = read_presets(PRESETS, "presets.yaml")
    assert clusters["two"].host.device == devices["A-SXM"] and clusters["two"].host.price == 3
    assert efficiency["gpu"].gemm.source == "a test" and efficiency["gpu"].gemm.low == 0.45
    assert efficiency["core"].gemm.value == 0.4  # and what is left out is as on GPUs
    assert efficiency["core"].gather == efficiency["gpu"].gather


@pytest.mark.parametrize(
    "section, entry, message",
    [
        ("devices", {"A-SXM": {"bandwidth": "1TB/s"}}, "devices.A-SXM.flops is missing"),
        ("hosts", {"two": {**OWN, "device": "B"}}, "hosts.two.device: no preset 'B'"),
        ("hosts", {"two": {**OWN, "device": "A-SXM", "pric": 3}}, "unknown key 'pric'"),
        ("efficiency", {"gpu": {"gemm": {"valu": 1}}, "core": {}}, "did you mean value?"),
        ("efficiency", {"gpus": {}}, "unknown key 'gpus'"),
        ("prices", {}, "unknown key 'prices'"),
    ],
)
def test_a_wrong_preset_is_named(section: str, entry: object, message: str):
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_presets({**PRESETS, section: entry}, "presets.yaml")


def test_this_machine():
    assert this_machine().devices >= 1 and this_machine().host.memory > 1e8


def own(**changed):
    return {"host": {**OWN, **changed}}


@pytest.mark.parametrize(
    "given, told",
    [
        (own(inside={"kind": "pcie", "bandwidth": 0}), "host.inside.bandwidth: given 0"),
        (own(bandwidth="0GB/s"), "host.bandwidth: given '0GB/s'; it must be more than 0"),
        (own(price=-3), "host.price: given -3; it must be 0 or more"),
        (own(device="H1000-SXM"), "did you mean H100-SXM?"),
        (own(devices=1.5), "host.devices: given 1.5; wanted a whole number"),
        (own(memory="64GBB"), "'GBB' is no unit of it"),
        (own(memory="many"), "host.memory: given 'many'; wanted a number, such as 80GB"),
        (own(memory=float("nan")), "host.memory"),
        (own(memory=True), "host.memory: given True"),
        (own(inside={"kind": "nvlnk", "bandwidth": "1GB/s"}), "did you mean nvlink?"),
        (own(pric=3), "unknown key 'pric'"),
        ({"host": {"devices": 2, "device": "L4"}}, "host.inside is missing"),
        ({"host": {"devices": 2}}, "host.device is missing"),
        ({"hosts": 2}, "host is missing"),
        ({"host": "DGX-H10"}, "did you mean DGX-H100?"),
        ({"host": "DGX-H100", "hosts": 0}, "hosts: given 0"),
        ({"host": OWN, "hosts": 2}, "no link between hosts"),
        ({"host": "DGX-H100", "efficiency": {"gemm": 1.5}}, "efficiency.gemm: given 1.5"),
        ({"host": "DGX-H100", "efficiency": {"gem": 0.5}}, "did you mean gemm?"),
        ({"host": "DGX-H100", "efficiency": {"gemm": [0.5, 0.4]}}, "wanted a number or [value"),
        ({"host": "DGX-H100", "between": 7}, "between: given 7; wanted keys and values"),
    ],
)
def test_nonsense_is_one_clear_error(given, told: str):
    with pytest.raises(ConfigError, match=re.escape(told)) as error:
        read_cluster(given)
    assert len(error.value.errors) == 1


def test_neither_file_nor_preset():
    with pytest.raises(ConfigError, match="did you mean laptop"):
        read_cluster("laptp")
