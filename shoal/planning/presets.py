"""Common machines. Peaks, memories and links are those of data sheets; prices are round figures of
public clouds in 2025 and stand for nobody's offer; efficiencies are the planner's assumptions.
"""

from __future__ import annotations

import os
import platform
from dataclasses import replace

import torch

from shoal.planning.cluster import (
    Cluster,
    ComputeDevice,
    Disk,
    Efficiency,
    Estimate,
    Host,
    NetworkLink,
)

SHEET = "data sheet"
FITTED = "fitted to eight published runs of MLPerf (benchmarks/plan.py)"
TERA, GIGA, MICRO = 1e12, 1e9, 1e-6


def _gpu(
    name: str, memory: float, bandwidth: float, float32: float, tf32: float, bfloat16: float
) -> ComputeDevice:
    """Memory in GB, bandwidth in GB/s, dense peaks in TFLOPS (without sparsity)."""
    peaks = {"float32": float32, "tf32": tf32, "bfloat16": bfloat16}
    flops = {key: value * TERA for key, value in peaks.items()}
    return ComputeDevice(name, "gpu", memory * GIGA, bandwidth * GIGA, flops, SHEET)


def _core(name: str, bandwidth: float, gflops: float, source: str) -> ComputeDevice:
    flops = {"float32": gflops * GIGA, "tf32": gflops * GIGA, "bfloat16": gflops * GIGA}
    return ComputeDevice(name, "core", 0.0, bandwidth * GIGA, flops, source)


DEVICES = {
    preset.name: preset
    for preset in (
        _gpu("V100-SXM", 32, 900, 15.7, 15.7, 125),  # float16 in the place of bfloat16
        _gpu("A100-SXM", 80, 2039, 19.5, 156, 312),
        _gpu("A100-PCIe", 80, 1935, 19.5, 156, 312),
        _gpu("A30", 24, 933, 10.3, 82, 165),
        _gpu("H100-SXM", 80, 3350, 67, 494, 989),
        _gpu("H100-PCIe", 80, 2000, 51, 378, 756),
        _gpu("H100-NVL", 94, 3900, 60, 417, 835),
        _gpu("GH200", 96, 4000, 67, 494, 989),
        _gpu("H200-SXM", 141, 4800, 67, 494, 989),
        _gpu("H200-NVL", 141, 4800, 60, 417, 835),
        _gpu("B200-SXM", 180, 8000, 75, 1125, 2250),
        _gpu("GB200", 186, 8000, 80, 1250, 2500),
        _gpu("L40S", 48, 864, 91.6, 183, 362),
        _gpu("L4", 24, 300, 30.3, 60, 121),
        _gpu("T4", 16, 320, 8.1, 8.1, 65),  # float16 in the place of bfloat16
        _core("x86-core", 12, 160, "AVX-512 at 2.5 GHz: 64 operations a cycle"),
        _core("arm-core", 15, 48, "Neoverse at 3 GHz: 16 operations a cycle"),
        _core("laptop-core", 15, 50, "a laptop's core at 3 GHz"),
    )
}


def nvlink(gigabytes: float) -> NetworkLink:
    """NVLink with this bandwidth of a device in each direction: half of what data sheets state."""
    return NetworkLink("nvlink", gigabytes * GIGA, 3 * MICRO)


def pcie(gigabytes: float) -> NetworkLink:
    """Each way, of a device."""
    return NetworkLink("pcie", gigabytes * GIGA, 8 * MICRO)


def infiniband(gigabits: float) -> NetworkLink:
    """Each way, of a device."""
    return NetworkLink("infiniband", gigabits * GIGA / 8, 6 * MICRO)


def ethernet(gigabits: float) -> NetworkLink:
    """Each way, of a device."""
    return NetworkLink("ethernet", gigabits * GIGA / 8, 25 * MICRO)


IN_MEMORY = NetworkLink("memory", 10 * GIGA, 20 * MICRO)
NVME = Disk(30 * TERA, 24 * GIGA, 12 * GIGA)


def _gpus(
    name: str,
    device: str,
    link: NetworkLink,
    price: float,
    memory: float = 2.0,
    to_device: float = 55,
) -> Host:
    """Eight GPUs and two CPUs with `memory` TB."""
    return Host(
        name=name,
        device=DEVICES[device],
        devices=8,
        inside=link,
        memory=memory * TERA,
        bandwidth=600 * GIGA,
        cores=112,
        to_device=to_device * GIGA,
        disk=NVME,
        price=price,
        source=SHEET,
    )


def _cores(name: str, core: str, cores: int, memory: float, bandwidth: float, price: float) -> Host:
    """Memory in GB, bandwidth of all cores in GB/s."""
    bytes_, speed = memory * GIGA, bandwidth * GIGA
    return Host(
        name=name,
        device=DEVICES[core],
        devices=cores,
        inside=IN_MEMORY,
        memory=bytes_,
        bandwidth=speed,
        cores=cores,
        price=price,
    )


HOSTS = {
    preset.name: preset
    for preset in (
        _gpus("DGX-A100", "A100-SXM", nvlink(300), 16, to_device=25),
        _gpus("DGX-H100", "H100-SXM", nvlink(450), 24),
        _gpus("DGX-H200", "H200-SXM", nvlink(450), 28),
        _gpus("DGX-B200", "B200-SXM", nvlink(900), 44, 4.0),
        _gpus("8xA100-PCIe", "A100-PCIe", pcie(32), 12, 1.0, 25),
        _gpus("8xH100-PCIe", "H100-PCIe", pcie(64), 18, 1.0),
        _gpus("8xH100-NVL", "H100-NVL", pcie(64), 20, 1.0),
        _gpus("8xL40S", "L40S", pcie(32), 9, 1.0, 25),
        _gpus("8xL4", "L4", pcie(32), 6, 0.5, 12),
        _gpus("8xT4", "T4", pcie(16), 4, 0.4, 12),
        _gpus("8xV100", "V100-SXM", nvlink(150), 20, 0.5, 12),
        _cores("x86-16", "x86-core", 16, 128, 100, 0.8),
        _cores("x86-64", "x86-core", 64, 512, 300, 3.0),
        _cores("arm-64", "arm-core", 64, 512, 300, 2.4),
        _cores("arm-2", "arm-core", 2, 24, 26, 0.1),
        _cores("laptop", "laptop-core", 8, 16, 60, 0.0),
    )
}

GPU = Efficiency(
    gemm=Estimate.about(0.71, 0.1, f"{FITTED}; products of HSTU: 0.76"),
    attention=Estimate.about(0.37, 0.2, "our kernels on an H200, forward and backward: 0.37"),
    stream=Estimate.about(0.80, 0.1, "a copy's share of the data sheet: 0.89 on an H200"),
    gather=Estimate.about(0.63, 0.2, f"{FITTED}; rows on an H200: 0.55 to 0.82 of a copy"),
    row=Estimate.about(0.06e-9, 0.5, "sorting on an H200"),
    kernel=Estimate.about(4.2 * MICRO, 0.3, FITTED),
    launch=Estimate.about(8 * MICRO, 0.3, "PyTorch's operations, forward or backward"),
    nvlink=Estimate.about(0.75, 0.15, "NCCL's bandwidth of large messages"),
    pcie=Estimate.about(0.38, 0.25, f"{FITTED}: eight devices over two bridges"),
    infiniband=Estimate.about(0.87, 0.13, FITTED),
    ethernet=Estimate.about(0.60, 0.3, "NCCL or Gloo over TCP"),
    memory=Estimate.about(0.70, 0.3, "copies through the host's memory"),
    jitter=Estimate.about(0.02, 0.5, "an assumption"),
    meet=Estimate.about(20 * MICRO, 0.5, "NCCL's launch, where steps are not recorded"),
    step=Estimate.about(0.5e-3, 0.5, "Python, and copies of a batch, for BPR on an H200"),
    cold=Estimate.about(8 * MICRO, 0.5, "a slot found, a row read, another written, on one core"),
)
CORE = replace(
    GPU,
    gemm=Estimate.about(0.60, 0.2, "products of float32 on one core"),
    attention=Estimate.about(0.40, 0.3, "products of small matrices on one core"),
    stream=Estimate.about(0.60, 0.3, "a core's copy"),
    gather=Estimate.about(0.55, 0.3, "rows on one core"),
    threads=Estimate.about(0.70, 0.3, "layers of a model on 2 and 4 cores of virtual machines"),
    step=Estimate.about(0.4e-3, 0.5, "Python, for a step of a small model"),
    row=Estimate.about(40e-9, 0.4, "rows of 16 numbers on one core: 87 ns an id, with bytes"),
    kernel=Estimate.about(2 * MICRO, 0.5, "an operation on a small tensor"),
    meet=Estimate.about(150 * MICRO, 0.5, "processes of a host, and Python between them"),
    launch=Estimate.about(6 * MICRO, 0.3, "PyTorch's operations, forward or backward"),
)
EFFICIENCY = {"gpu": GPU, "core": CORE}

_BETWEEN = {
    **dict.fromkeys(("DGX-H100", "DGX-H200", "DGX-B200"), infiniband(400)),
    **dict.fromkeys(("DGX-A100", "8xV100"), infiniband(200)),
    **dict.fromkeys(("8xA100-PCIe", "8xH100-PCIe", "8xH100-NVL", "8xL40S"), ethernet(50)),
    **dict.fromkeys(("8xL4", "8xT4"), ethernet(12.5)),
    **dict.fromkeys(("x86-64", "arm-64", "x86-16"), ethernet(25)),
    **dict.fromkeys(("arm-2",), ethernet(10)),
}
CLUSTERS = {
    name: Cluster(name, host, 1, _BETWEEN.get(name), EFFICIENCY[host.device.kind])
    for name, host in HOSTS.items()
}


def this_machine() -> Cluster:
    """This machine, guessed from presets; `shoal plan --measure` is more exact."""
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if torch.cuda.is_available():
        device_name = torch.cuda.get_device_name(0)
        similar_hosts = [
            host
            for host in HOSTS.values()
            if host.on_gpu and _is_like(host.device.name, device_name)
        ]
        host = similar_hosts[0] if similar_hosts else HOSTS["8xL4"]
        size = float(torch.cuda.mem_get_info(0)[1])
        device = replace(host.device, name=device_name, memory=size)
        number = torch.cuda.device_count()
        machine = replace(host, device=device, devices=number)
    else:
        host = HOSTS["arm-64" if platform.machine() in ("aarch64", "arm64") else "x86-64"]
        bandwidth = min(host.bandwidth, host.device.bandwidth * (cores or 1))
        machine = replace(
            host, name="this machine", devices=cores or 1, bandwidth=bandwidth, price=0.0
        )
    machine = replace(machine, cores=cores or 1, memory=memory)
    return Cluster("this machine", machine, 1, None, EFFICIENCY[machine.device.kind])


def _is_like(preset: str, device_name: str) -> bool:
    """Whether a preset's device is the one that a driver names, such as NVIDIA H100 80GB HBM3."""
    words = device_name.upper().replace("-", " ").split()
    return preset.split("-")[0].upper() in words
