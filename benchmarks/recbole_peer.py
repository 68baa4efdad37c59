"""Runs a model in RecBole 1.2.1 and prints one JSON line; started by `bpr_ml100k.py`, `zoo.py`.

It runs in RecBole's own environment and imports nothing of Shoal. RecBole is called through its
own `run_recbole`, untouched but for two timers and what it needs to start at all on today's numpy
and torch (see `make_it_start`). Its logs, checkpoints and curves go to the working directory.
With --many it stays and reads what to run from its input, a line of JSON each (`zoo_recbole.py`).
"""

import os
import time

if os.environ.get("SHOAL_BENCHMARK_CLOCK") == "cpu":
    time.perf_counter = time.process_time
STARTED = time.perf_counter()  # before the imports: they are part of what a user waits for

import argparse  # noqa: E402
import functools  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
import statistics  # noqa: E402
import sys  # noqa: E402
import types  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from scipy.sparse import coo_matrix, dok_matrix  # noqa: E402


def make_it_start() -> None:
    """Put back the names of numpy and torch that RecBole 1.2.1 was written against."""
    for name, value in {
        "float_": np.float64,
        "complex_": np.complex128,
        "unicode_": np.str_,
        "float": float,  # read at import, before RecBole sets its own aliases
    }.items():
        if name not in vars(np):
            setattr(np, name, value)
    # Its graphs are filled through a name that scipy has dropped.
    if not hasattr(dok_matrix, "_update"):
        dok_matrix._update = lambda matrix, values: matrix._dict.update(values)
    # Its checkpoints pickle the whole config, which torch refuses by default since 2.6.
    torch.load = functools.partial(torch.load, weights_only=False)
    # Needed for hyper-parameter search only. Leaving it out spares RecBole the time of the import.
    if importlib.util.find_spec("ray") is None:
        ray = types.ModuleType("ray")
        ray.tune = types.ModuleType("ray.tune")  # type: ignore[attr-defined]
        sys.modules.update({"ray": ray, "ray.tune": ray.tune})
    if importlib.util.find_spec("tensorboard") is None:
        curves = types.ModuleType("torch.utils.tensorboard")
        curves.SummaryWriter = NoCurves  # type: ignore[attr-defined]
        sys.modules["torch.utils.tensorboard"] = curves
    # Means and shares by group, which two of its graph models take from a package of their own.
    if importlib.util.find_spec("torch_scatter") is None:
        scatter = types.ModuleType("torch_scatter")
        scatter.scatter_mean = scatter_mean  # type: ignore[attr-defined]
        scatter.scatter_softmax = scatter_softmax  # type: ignore[attr-defined]
        sys.modules["torch_scatter"] = scatter
    # KGAT has dgl count the edges of each relation, and no more.
    if importlib.util.find_spec("dgl") is None:
        dgl = types.ModuleType("dgl")
        dgl.graph = EdgeList  # type: ignore[attr-defined]
        dgl.edge_subgraph = EdgeList.chosen  # type: ignore[attr-defined]
        sys.modules["dgl"] = dgl


def scatter_mean(src, index, dim=0, dim_size=None):
    """The mean of the rows of each group, in the place of torch_scatter's."""
    assert dim == 0
    groups = int(index.max()) + 1 if dim_size is None else dim_size
    total = src.new_zeros(groups, *src.shape[1:]).index_add(0, index, src)
    counts = torch.bincount(index, minlength=groups).clamp(min=1)
    return total / counts.view(-1, *[1] * (src.dim() - 1))


def scatter_softmax(src, index, dim=0):
    """Each row's share of its group, by column, in the place of torch_scatter's."""
    assert dim == 0
    groups = (int(index.max()) + 1, *src.shape[1:])
    largest = src.new_full(groups, -torch.inf).index_reduce(0, index, src.detach(), "amax")
    shares = (src - largest[index]).exp()
    return shares / src.new_zeros(groups).index_add(0, index, shares)[index]


class EdgeList:
    """A graph, in the place of dgl's: edges from the nodes of one list to those of another."""

    def __init__(self, ends, num_nodes=None):
        self.ends = ends
        self.num_nodes = num_nodes or 1 + max(int(end.max()) for end in ends)
        self.edata = {}

    @property
    def data(self):
        return self.edata

    def filter_edges(self, predicate):
        return predicate(self).nonzero().squeeze(1)

    def chosen(self, edges, preserve_nodes):
        assert preserve_nodes
        return EdgeList([end[edges] for end in self.ends], self.num_nodes)

    def adjacency_matrix(self, transpose, scipy_fmt):
        assert not transpose and scipy_fmt == "coo"
        sources, targets = (end.numpy() for end in self.ends)
        ones = np.ones(len(sources), np.float32)
        return coo_matrix((ones, (sources, targets)), shape=(self.num_nodes,) * 2)


class NoCurves:
    """In the place of TensorBoard's writer, where there is none: nobody looks at the curves."""

    def __init__(self, *_: object):
        pass

    def add_scalar(self, *_: object) -> None:
        pass

    add_hparams = add_scalar


def run_many_processes_on_cpu() -> None:
    """RecBole ties several processes to NCCL and one GPU each; use Gloo and the CPU instead."""
    from recbole.config import Config

    init_process_group = torch.distributed.init_process_group
    init_device = Config._init_device

    def init_with_gloo(backend: str, **options: object) -> None:
        init_process_group(backend="gloo", **options)

    def init_on_cpu(config: Config) -> None:
        init_device(config)
        config.final_config_dict["device"] = torch.device("cpu")

    torch.distributed.init_process_group = init_with_gloo
    torch.cuda.set_device = lambda device: None
    Config._init_device = init_on_cpu


def run(rank: int, options: argparse.Namespace) -> None:
    """Train and test in this process; rank 0 prints the figures."""
    import recbole
    from recbole.quick_start import quick_start

    imported = time.perf_counter()
    started: list[float] = []
    train_seconds: list[float] = []
    eval_seconds: list[float] = []
    scores: list[float] = []
    trainer_of = quick_start.get_trainer

    def timed_trainer(*names):
        base = trainer_of(*names)

        class Timed(base):
            def _train_epoch(self, *args, **kwargs):
                started.append(time.perf_counter())
                loss = base._train_epoch(self, *args, **kwargs)
                train_seconds.append(time.perf_counter() - started[-1])
                return loss

            def _train_at_once(self, *args, **kwargs):  # gradient-boosted trees
                started.append(time.perf_counter())
                base._train_at_once(self, *args, **kwargs)
                train_seconds.append(time.perf_counter() - started[-1])

            def _valid_epoch(self, *args, **kwargs):
                start = time.perf_counter()
                score, result = base._valid_epoch(self, *args, **kwargs)
                eval_seconds.append(time.perf_counter() - start)
                scores.append(float(score))
                return score, result

        return Timed

    quick_start.get_trainer = timed_trainer

    settings = {
        "data_path": options.data,
        "epochs": options.epochs,
        "stopping_step": options.stopping_step,
        "seed": options.seed,
        "show_progress": False,
        "use_gpu": options.gpu,
        "gpu_id": "0" if options.gpu else "",  # RecBole takes a GPU that it sees unless named none
    }
    if options.eval_batch_size:
        settings["eval_batch_size"] = options.eval_batch_size
    if options.nproc > 1:
        run_many_processes_on_cpu()
        settings |= {
            "gpu_id": ",".join(str(gpu) for gpu in range(options.nproc)),
            "world_size": options.nproc,
            "nproc": options.nproc,
            "ip": "localhost",
            "port": options.port,
            "offset": 0,
            "local_rank": rank,
        }

    try:
        result = quick_start.run_recbole(
            model=options.model,
            dataset="ml-100k",
            config_file_list=[options.config],
            config_dict=settings,
        )
    finally:
        quick_start.get_trainer = trainer_of
    if rank > 0:
        return

    best = max(scores)
    report = {
        "version": recbole.__version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "epochs": len(train_seconds),
        "best_epoch": len(scores) - 1 - scores[::-1].index(best),
        "best_valid": {name: float(value) for name, value in result["best_valid_result"].items()},
        "test": {name: float(value) for name, value in result["test_result"].items()},
        "seconds": {
            "imports": imported - STARTED,
            "startup": started[0] - STARTED,
            "train_epoch_median": statistics.median(train_seconds[1:] or train_seconds),
            "eval_median": statistics.median(eval_seconds[1:] or eval_seconds),
            "total": time.perf_counter() - STARTED,
        },
    }
    print(json.dumps(report), flush=True)


def main() -> None:
    """Read the command line and run in one process, or in several that this one starts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder that holds ml-100k/")
    parser.add_argument("--config", help="RecBole's settings, a YAML file")
    parser.add_argument("--model", default="BPR", help="as RecBole names it")
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--stopping-step", type=int, default=10)
    parser.add_argument("--seed", type=int, default=2020)
    parser.add_argument("--eval-batch-size", type=int, help="default: what the config says")
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--port", default="5678", help="where several processes meet")
    parser.add_argument("--gpu", action="store_true", help="on the first GPU")
    parser.add_argument("--many", action="store_true", help="model, config, epochs: from the input")
    options = parser.parse_args()
    if options.many:
        for line in sys.stdin:
            try:
                run(0, argparse.Namespace(**{**vars(options), **json.loads(line)}))
            except Exception as error:  # one model that fails is a line of the table, no more
                print(json.dumps({"failed": f"{type(error).__name__}: {error}"}), flush=True)
    elif options.nproc == 1:
        run(0, options)
    else:
        torch.multiprocessing.spawn(run, args=(options,), nprocs=options.nproc)


make_it_start()  # also in the processes that spawn starts, which import this file anew

if __name__ == "__main__":
    main()
