"""HSTU's attention on one GPU: right, and how fast.

    python benchmarks/sequence_gpu.py check       errors against torch, by shape and type
    python benchmarks/sequence_gpu.py forward     tiles of the forward kernel
    python benchmarks/sequence_gpu.py backward    tiles of the backward kernels
    python benchmarks/sequence_gpu.py lengths     lengths by Zipf, one of 16,384, a small model
    python benchmarks/sequence_gpu.py step        eight layers, forward and backward
    python benchmarks/sequence_gpu.py quick       check, lengths, step and narrow, compiled first

Most of it is compiling. `small` first runs a tiny shape instead, which leaves the same kernels in
Triton's cache: run parts so side by side, and then the parts that are timed. `check bfloat16`
checks one type alone, and 128 takes heads of 128 alone.

Needs torch and Triton alone: the package around kernels and layer is not imported. Operations are
counted as others count them: causal, 4 * T * T * heads * dim * batch / 2 forward, 2.5 times that
backward; of a layer's products 2 * tokens * inputs * outputs forward, twice that backward.
"""

import subprocess
import sys
import time
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
_FOLDERS = "shoal kernels kernels.common kernels.gpu data models models.nn"
for _name in _FOLDERS.split():  # without their __init__
    _name = _name if _name == "shoal" else f"shoal.{_name}"
    _package = types.ModuleType(_name)
    _package.__path__ = [str(ROOT / _name.replace(".", "/"))]
    sys.modules[_name] = _package

from shoal.kernels import hstu  # noqa: E402
from shoal.kernels.common import sequences as common  # noqa: E402
from shoal.kernels.gpu import hstu as kernels  # noqa: E402
from shoal.kernels.gpu import hstu_tiles  # noqa: E402
from shoal.models.nn.hstu import HSTULayer, without_pads  # noqa: E402

DEVICE = torch.device("cuda")
DAY = 86_400
SMALL = "small" in sys.argv
DIMS = [int(x) for x in sys.argv[1:] if x.isdigit()]  # of a head; none: all


class Problem:
    """Random sequences of given lengths, packed, and all that attention reads."""

    def __init__(
        self,
        lengths: list[int],
        heads: int,
        dim: int,
        value_dim: int,
        dtype: torch.dtype,
        positions: bool = True,
        times: bool = True,
        wide: bool = False,
    ):
        torch.manual_seed(len(lengths) + dim)
        tokens = sum(lengths)
        self.lengths, self.longest, self.n = lengths, max(lengths), max(lengths)
        widths = (heads * value_dim, heads * dim, heads * dim)
        packed = torch.randn(tokens, sum(widths), device=DEVICE).to(dtype)
        # As a layer makes them: side by side in one row.
        value, query, key = packed.split(widths, -1)
        scale = dim**-0.25
        self.query = (query * scale).view(tokens, heads, dim)
        self.key = (key * scale).view(tokens, heads, dim)
        self.value = value.view(tokens, heads, value_dim)
        self.grad = torch.randn(tokens, heads, value_dim, device=DEVICE).to(dtype)
        self.positions = torch.randn(self.n, device=DEVICE) * 0.5 if positions else None
        self.times = torch.randn(common.BUCKETS + 1, device=DEVICE) * 0.5 if times else None
        sizes = torch.tensor(lengths)
        # Sessions: some minutes between items, now and then days.
        gaps = torch.randint(0, 600, (tokens + 1,))
        gaps += (torch.rand(tokens + 1) < 0.05) * torch.randint(0, 3 * DAY, (tokens + 1,))
        moments = gaps.cumsum(0) * (2**20 if wide else 1)
        moments = moments.to(DEVICE, torch.int64 if wide or tokens > 80_000 else torch.int32)
        starts = sizes.cumsum(0) - sizes
        self.moments, self.starts = moments, starts.tolist()
        asked, taken = moments[1:].contiguous(), moments[:-1].contiguous()
        if not wide and asked.dtype == torch.int64:  # from the beginning of each sequence
            first = torch.repeat_interleave(
                taken[starts.clamp(max=tokens - 1).to(DEVICE)], sizes.to(DEVICE)
            )
            asked, taken = (asked - first).int(), (taken - first).int()
        self.sequences = common.Sequences(
            starts.int().to(DEVICE), sizes.int().to(DEVICE), self.longest, asked, taken,
            tuple(lengths),
        )  # fmt: skip
        self.operations = sum(4 * length * length * heads * dim / 2 for length in lengths)

    def leaves(self) -> list[Tensor | None]:
        given = (self.query, self.key, self.value, self.positions, self.times)
        return [None if x is None else x.detach().requires_grad_() for x in given]

    def forward(self, tiles: Any = None) -> Tensor:
        given = (self.query, self.key, self.value, self.sequences, self.positions, self.times)
        return kernels.forward(*given, self.n, tiles)

    def backward(self, *tiles: Any) -> Any:
        given = (self.query, self.key, self.value, self.grad, self.sequences)
        return kernels.backward(*given, self.positions, self.times, self.n, *tiles)

    def plain(self) -> list[Tensor]:
        """Output and gradients by torch in float32, one sequence after another."""
        query, key, value, positions, times = self.leaves()
        out = []
        for start, length in zip(self.starts, self.lengths, strict=True):
            q, k, v = (
                x[start : start + length].float().transpose(0, 1)[None] for x in (query, key, value)
            )
            table = positions if positions is not None else torch.zeros(self.n, device=DEVICE)
            buckets = None
            if times is not None:
                buckets = common.time_buckets(self.moments[None, start : start + length + 1])
            made = hstu.plain_hstu_attention(q, k, v, table, times, buckets, self.n)
            out.append(made[0].transpose(0, 1))
        whole = torch.cat(out)
        leaves = [x for x in (query, key, value, positions, times) if x is not None]
        return [whole.detach(), *torch.autograd.grad(whole, leaves, self.grad.float())]


def check(only: Any = None) -> None:
    """Relative errors ‖kernel - torch‖ / ‖torch‖; the same bits twice."""
    torch.set_float32_matmul_precision("highest")
    ragged = [0, 1, 17, 300, 257, 0, 128, 513, 64]
    limits = {torch.bfloat16: 1.5e-2, torch.float16: 2e-3, torch.float32: 2e-5}
    shapes = [(4, 256, 256), (8, 128, 128), (16, 64, 64), (1, 32, 32), (2, 25, 25), (2, 32, 64)]
    types = [x for x in sys.argv[1:] if x in ("bfloat16", "float16", "float32")]
    only = only or [(x, DIMS) for x in types or ("bfloat16", "float16", "float32")]
    for kind, dims in only:
        dtype = getattr(torch, kind)
        limit = limits[dtype]
        for heads, dim, value_dim in [x for x in shapes if not dims or x[1] in dims]:
            cases = ((True, True, False), (True, True, True), (False, False, False))
            for positions, times, wide in cases if dim == 256 or dim == 25 else cases[:1]:
                given = (ragged, heads, dim, value_dim, dtype, positions, times, wide)
                problem = Problem(*given)
                try:
                    ours = [problem.forward(), *(x for x in problem.backward() if x is not None)]
                    again = problem.backward()
                except Exception as error:
                    print(f"{given[1:]}: {type(error).__name__}: {str(error)[:200]}", flush=True)
                    continue
                same = all(torch.equal(a, b) for a, b in zip(ours[1:], again, strict=False))
                errors = [
                    float((a.double() - b.double()).norm() / b.double().norm())
                    for a, b in zip(ours, problem.plain(), strict=True)
                ]
                # Without times the plain form has a table of positions of zeros.
                verdict = "ok" if max(errors) < limit and same else "WRONG"
                shown = " ".join(f"{x:.1e}" for x in errors)
                name = str(dtype).removeprefix("torch.")
                print(f"{verdict:5} {name:8} {heads} x {dim}/{value_dim} bias {positions} "
                      f"wide {wide} twice {same}: {shown}", flush=True)  # fmt: skip


def seconds(compute: Callable[[], Any]) -> float:
    return triton.testing.do_bench(compute, warmup=100, rep=300, return_mode="median") / 1000


def compiled(function: Any) -> str:
    """Registers, spills and shared memory of the kernel that was compiled last."""
    cache = function.device_caches[torch.cuda.current_device()]
    last = list((cache[0] if isinstance(cache, tuple) else cache).values())[-1]
    return f"regs {last.n_regs} spills {last.n_spills} smem {last.metadata.shared}"


def tiles_of(names: tuple[str, str], text: str) -> dict[str, Any]:
    """ "128,64,8,2" and words: p: by pointers instead of TMA."""
    rows, columns, warps, stages, *words = text.split(",")
    tiles: dict[str, Any] = {names[0]: int(rows), names[1]: int(columns), "TMA": "p" not in words}
    return tiles | {"num_warps": int(warps), "num_stages": int(stages)}


def by_kernel(compute: Callable[[], Any], times: int = 5) -> dict[str, float]:
    """Milliseconds of each kernel in one call."""
    from torch.profiler import ProfilerActivity, profile

    compute()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(times):
            compute()
        torch.cuda.synchronize()
    return {
        event.key[:28]: event.self_device_time_total / 1000 / times
        for event in found.key_averages()
        if event.self_device_time_total / 1000 / times > 0.01
    }


FORWARD = (
    "128,64,8,2 128,32,8,2 128,32,8,3 128,32,8,4 128,128,8,1 64,64,4,2 64,64,4,3 64,32,4,3 "
    "64,64,8,2 64,128,8,1 128,64,8,2,p 128,32,8,3,p"
)
SCORES = (
    "128,64,8,1 128,32,8,2 64,64,4,2 64,64,8,2 64,32,4,2 64,32,4,3 64,128,8,1 32,64,4,2 128,64,4,1 "
    "128,32,4,2 128,32,8,2,p 128,64,8,1,p"
)
PRODUCTS = (
    "128,64,8,3 128,64,8,4 128,128,8,2 128,32,8,4 128,32,8,6 64,64,4,3 64,64,4,2 64,128,4,2 "
    "128,64,8,3,p"
)
BIASES = ((64, 4), (64, 8), (32, 1), (32, 2), (32, 4), (16, 1))  # places of a tile, warps


def nvidia(bias: bool, length: int = 4096) -> Problem:
    lengths = [256] if SMALL else [length] * 32
    return Problem(lengths, 4, 256, 256, torch.bfloat16, bias, bias)


def forward() -> None:
    for bias in (False, True):
        problem = nvidia(bias)
        for text in FORWARD.split():
            tiles = tiles_of(("QUERIES", "KEYS"), text)
            try:
                took = seconds(lambda p=problem, t=tiles: p.forward(t))
                print(f"forward bias {bias!s:5} {text:14} {took * 1e3:7.2f} ms "
                      f"{problem.operations / took / 1e12:6.1f} TFLOPS "
                      f"{compiled(hstu_tiles.attend)}", flush=True)  # fmt: skip
            except Exception as error:
                print(f"forward bias {bias!s:5} {text:14} {type(error).__name__}: "
                      f"{str(error)[:120]}", flush=True)  # fmt: skip


def backward() -> None:
    for bias in (False, True):
        problem = nvidia(bias)
        default = ("128,32,8,2", "128,64,8,3")
        if bias:
            for kernels._Biases.BLOCK, kernels._Biases.WARPS in BIASES[::-1]:
                block = (kernels._Biases.BLOCK, kernels._Biases.WARPS)
                try:
                    parts = by_kernel(problem.backward)
                    found = [f"{ms:.2f} ms" for name, ms in parts.items() if "bias" in name]
                    print(f"biases {block} {found} {compiled(hstu_tiles.sum_biases)}", flush=True)
                except Exception as error:
                    print(f"biases {block} {type(error).__name__}: {str(error)[:120]}", flush=True)
        runs = [
            default,
            *((x, default[1]) for x in SCORES.split()),
            *((default[0], x) for x in PRODUCTS.split()),
        ]
        for number, (scores, products) in enumerate(runs):
            tiles = tiles_of(("QUERIES", "KEYS"), scores), tiles_of(("ROWS", "INNER"), products)
            try:
                took = seconds(lambda p=problem, t=tiles: p.backward(*t)) if number == 0 else None
                parts = by_kernel(lambda p=problem, t=tiles: p.backward(*t))
                whole = took * 1e3 if took is not None else sum(parts.values())
                shown = ", ".join(f"{name} {ms:.2f}" for name, ms in parts.items())
                rate = 2.5 * problem.operations / whole / 1e9
                print(f"backward bias {bias!s:5} scores {scores:12} products {products:12} "
                      f"{whole:6.2f} ms {rate:6.1f} TFLOPS | {shown} | "
                      f"{compiled(hstu_tiles.write_scores)} | {compiled(hstu_tiles.multiply)}",
                      flush=True)  # fmt: skip
            except Exception as error:
                print(f"backward bias {bias!s:5} scores {scores} products {products} "
                      f"{type(error).__name__}: {str(error)[:120]}", flush=True)  # fmt: skip


def zipf(count: int, longest: int, alpha: float = 1.2) -> list[int]:
    """Lengths whose frequencies fall as a power."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.arange(1, longest + 1, dtype=torch.float64) ** -alpha
    return (torch.multinomial(weights, count, True, generator=generator) + 1).tolist()


def lengths(quick: bool = False) -> None:
    """The tiles that the kernels choose themselves."""
    cases = {
        "32 x 4099": ([4099] * 32, 4, 256, torch.bfloat16),
        "zipf 256, at most 4096": (zipf(256, 4096), 4, 256, torch.bfloat16),
        "uniform 64, at most 4096": (
            torch.randint(1, 4097, (64,), generator=torch.Generator().manual_seed(2)).tolist(), 4,
            256, torch.bfloat16),
        "1 x 16384": ([16384], 4, 256, torch.bfloat16),
        "128 x 200, 1 x 50, float32": ([200] * 128, 1, 50, torch.float32),
        "128 x 200, 2 x 25, float32": ([200] * 128, 2, 25, torch.float32),
        "32 x 4096, 8 x 128": ([4096] * 32, 8, 128, torch.bfloat16),
        "32 x 4096, 16 x 64": ([4096] * 32, 16, 64, torch.bfloat16),
    }  # fmt: skip
    torch.set_float32_matmul_precision("high")
    for name, (sizes, heads, dim, dtype) in cases.items():
        if (quick and dtype == torch.float32) or (DIMS and dim not in DIMS):
            continue
        # Small ones are cut into parts where large ones are.
        kernels.SCRATCH = 2**19 if SMALL and "16384" in name else 2**30
        for bias in (False, True):
            try:
                sizes = [min(size, 256) for size in sizes[:2]] if SMALL else sizes
                problem = Problem(sizes, heads, dim, dim, dtype, bias, bias)
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                ahead = seconds(problem.forward)
                back = seconds(problem.backward)
                room = (torch.cuda.max_memory_allocated() - before) / 2**30
                print(f"{name:28} bias {bias!s:5} forward {ahead * 1e3:7.3f} ms "
                      f"{problem.operations / ahead / 1e12:6.1f} backward {back * 1e3:7.3f} ms "
                      f"{2.5 * problem.operations / back / 1e12:6.1f} TFLOPS, {room:.1f} GiB",
                      flush=True)  # fmt: skip
                if dtype == torch.float32:
                    plain = seconds(problem.plain)
                    print(f"{name:28} plain, one sequence after another {plain * 1e3:.2f} ms")
            except Exception as error:
                print(f"{name} bias {bias}: {type(error).__name__}: {str(error)[:200]}", flush=True)


class Layers(torch.nn.Module):
    """NVIDIA's shape: eight layers, width 1024, four heads of 256."""

    def __init__(self, max_len: int, bias: bool):
        super().__init__()
        options = types.SimpleNamespace(
            hidden_size=1024, n_heads=4, attention_size=None, linear_size=None, use_positions=bias,
            use_times=bias, linear_dropout_prob=0.0, layer_norm_eps=1e-6)  # fmt: skip
        self.layers = torch.nn.ModuleList(HSTULayer(options, max_len) for _ in range(8))

    def gradients(self, x: Tensor, buckets: Tensor | None, sequences: Any, grad: Tensor) -> None:
        states = x
        for layer in self.layers:
            states = layer(states, buckets, sequences)
        torch.autograd.grad(states, [x, *self.parameters()], grad)


def step() -> None:
    """Forward and backward of the layers, bfloat16, without tables of items and optimizer."""
    for lengths, bias, plain in (
        ([4099] * 32, False, False),
        ([4099] * 32, True, False),
        (zipf(256, 4096), True, False),
        ([2048], True, False),
        ([2048], True, True),
    ):
        lengths = [min(length, 200) for length in lengths[:2]] if SMALL else lengths
        size, longest = len(lengths), max(lengths)
        kind = "plain" if plain else "kernels"
        name = f"8 layers, {size} x {longest} ({sum(lengths)} tokens), bias {bias!s:5} {kind:7}"
        try:
            torch.manual_seed(0)
            torch.cuda.empty_cache()
            model = Layers(longest, bias).to(DEVICE, torch.bfloat16)
            real = torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)
            history = real.long().to(DEVICE)
            gaps = torch.randint(0, 600, (size, longest + 1))
            times = (gaps.cumsum(1) + 1_700_000_000).to(DEVICE) if bias else None
            x = torch.randn(size, longest, 1024, device=DEVICE).bfloat16()
            sequences = (
                None
                if plain
                else hstu.sequences_of(history, *common.request_and_event_times(times))
            )
            x = without_pads(x, sequences)
            buckets = common.time_buckets(times) if plain else None
            x.requires_grad_()
            grad = torch.randn_like(x)
            once = partial(model.gradients, x, buckets, sequences, grad)
            once()
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
            begun, times_run = time.perf_counter(), 1 if plain else 5
            for _ in range(times_run):
                once()
            torch.cuda.synchronize()
            took = (time.perf_counter() - begun) / times_run
            tokens = sum(lengths)
            products = 3 * 2 * tokens * 1024 * (4096 + 1024)
            attention = 3.5 * sum(4 * length * length * 1024 / 2 for length in lengths)
            shown = (
                ""
                if plain
                else ", ".join(
                    f"{kernel[:18]} {ms:.1f}" for kernel, ms in by_kernel(once, 1).items() if ms > 1
                )
            )
            print(f"{name} {took * 1e3:8.1f} ms {tokens / took:9.0f} tokens/s "
                  f"{8 * (products + attention) / took / 1e12:6.1f} TFLOPS, "
                  f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB | {shown}",
                  flush=True)  # fmt: skip
        except Exception as error:
            print(f"{name} {type(error).__name__}: {str(error)[:200]}", flush=True)


NARROW = {
    "forward": "128,64,8,2 128,64,8,3 128,64,4,3 128,128,8,2 128,32,4,3",
    "scores": "64,32,4,3 64,64,4,2 64,64,4,3 128,64,8,2",
    "products": "128,64,8,4 128,64,4,4 64,64,4,4",
}


def narrow() -> None:
    """Tiles for heads of 128 and 64: milliseconds of the kernel alone."""
    names = {"forward": "attend", "scores": "write_scores", "products": "multiply"}
    for dim in DIMS or (128, 64):
        for bias in (False, True):
            if ("bias" if not bias else "plain") in sys.argv:
                continue
            sizes = [256] if SMALL else [4096] * 8
            problem = Problem(sizes, 1024 // dim, dim, dim, torch.bfloat16, bias, bias)
            for kind, kernel in names.items():
                if kind == "products" and bias:
                    continue
                found = {}
                for text in NARROW[kind].split():
                    columns = ("ROWS", "INNER") if kind == "products" else ("QUERIES", "KEYS")
                    tiles = tiles_of(columns, text)
                    run = {
                        "forward": partial(problem.forward, tiles),
                        "scores": partial(problem.backward, tiles),
                        "products": partial(problem.backward, None, tiles),
                    }[kind]
                    try:
                        parts = by_kernel(run, 2)
                        found[text] = sum(ms for name, ms in parts.items() if kernel in name)
                    except Exception as error:
                        print(f"{text}: {type(error).__name__}: {str(error)[:80]}", flush=True)
                best = sorted(found.items(), key=lambda pair: pair[1])
                shown = "  ".join(f"{text} {ms:.2f}" for text, ms in best)
                print(f"tiles {1024 // dim} x {dim} bias {bias!s:5} {kind:8} {shown}", flush=True)


def quick() -> None:
    """Everything that a change of the kernels must show; compiled by processes side by side."""
    begun = time.perf_counter()
    jobs = [
        *("check bfloat16 256", "check bfloat16 128", "check bfloat16 64", "check bfloat16 25"),
        *("check float32 25", "check float32 32", "lengths 256", "lengths 128", "lengths 64"),
        *("step", "narrow 128 plain", "narrow 128 bias", "narrow 64 plain", "narrow 64 bias"),
    ]
    small = [subprocess.Popen([sys.executable, __file__, *job.split(), "small"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
             for job in jobs]  # fmt: skip
    for process in small:
        try:
            process.wait(max(1.0, begun + 80 - time.perf_counter()))
        except subprocess.TimeoutExpired:  # the rest is compiled where it is timed
            process.kill()
    print(f"compiled in {time.perf_counter() - begun:.0f} s", flush=True)
    checks = (("bfloat16", (256, 128, 64, 25)), ("float32", (25, 32)))
    for part in (step, partial(lengths, quick=True), partial(check, checks), narrow):
        part()
        print(f"{time.perf_counter() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    print(torch.cuda.get_device_name(), torch.__version__, triton.__version__, flush=True)
    parts = {"check": check, "forward": forward, "backward": backward, "lengths": lengths}
    parts |= {"step": step, "narrow": narrow}
    if "quick" in sys.argv:
        quick()
    else:
        for part in [x for x in sys.argv[1:] if x in parts] or parts:
            parts[part]()
