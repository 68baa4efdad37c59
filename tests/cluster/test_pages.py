"""The commands of five tools' pages, word by word, where examples/pages has their scripts.

What a page leaves to its reader is put in: addresses of hosts, the secret or the keys that let them
join, and sizes for this machine. GPUs become CPUs, and PaddleRec's data is generated.
"""

from __future__ import annotations

import os
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from commands import ROOT, Command, metrics, result
from forks import forked
from net_hosts import ADDRESSES, Hosts
from torchx_runs import BIN, QUIET, need_torchx

PAGES = ROOT / "examples" / "pages"
TEXTS = Path(os.environ.get("SHOAL_TEST_PAGES", ROOT.parent / "shared" / "seeds"))
A, B, _ = ADDRESSES
SECRET = "of the hosts of this test alone"
RECBOLE = "python run_recbole.py --model=BPR --dataset=ml-100k --config_files=test.yaml "
TWO = RECBOLE + "--ip='183.174.228.81' --port='5678' --nproc=4 --world_size=8 --group_offset="
FLEET = "fleetrun {} tools/static_ps_trainer.py -m models/rank/dnn/config.yaml"
ADDRESSED = "ip1:port1,ip2:port2...ipN:portN"
PADDLE = "python -m paddle.distributed.launch {}../../../tools/{}trainer.py -m config.yaml"
IPS = '--ips="xx.xx.xx.xx,yy.yy.yy.yy" --gpus 0,1,2,3,4,5,6,7 '
TORCHX = "torchx run -s {} dist.ddp -j 1x{} --script "
BERT4REC = "bert4rec_main.py -- --dataset_name random --mode "
REPRODUCE = (
    "bert4rec_folder/bert4rec_main.py -- --dataset_name random --random_user_count 3000 "
    "--random_item_count 500000 --random_size 8000000 --lr 0.001 --mask_prob 0.2 "
    "--train_batch_size 8 --val_batch_size 8 --max_len 16 --emb_dim 128 --num_epochs 1 --mode dmp"
)
LAUNCH = (
    "CUDA_VISIBLE_DEVICES=0,1 COLLECTIVE_STRATEGY=hb "
    "python3 -m tensorflow.python.distribute.launch <python script.py>"
)
COMMANDS = {
    "recbole": [
        "python run_a.py",
        "python run_b.py",
        RECBOLE + "--nproc=4",
        TWO + "0",
        TWO + "4",
    ],
    "paddlerec": [
        FLEET.format("--worker_num=1 --server_num=1"),
        FLEET.format(f'--workers="{ADDRESSED}" --servers="{ADDRESSED}"'),
        *(PADDLE.format(ips, kind) for ips in ("", IPS) for kind in ("", "static_")),
        "sh tools/run_gpubox.sh",
    ],
    "torchrec": [
        *(TORCHX.format("local_cwd", 2) + BERT4REC + mode for mode in ("dmp", "ddp")),
        *(TORCHX.format("slurm", 8) + BERT4REC + mode for mode in ("dmp", "ddp")),
        TORCHX.format("local_cwd", 8) + REPRODUCE,
    ],
    "tdfo": ["python preprocessing.py", TORCHX.format("local_cwd", 2) + "train.py"],
    "deeprec": [LAUNCH],
}
CPUS = " -o runner.use_gpu=False data.clicks.synthetic.samples=2000"


@pytest.mark.skipif(not TEXTS.is_dir(), reason="the pages themselves are not here")
@pytest.mark.parametrize("page", COMMANDS)
def test_the_commands_are_those_of_the_page(page: str) -> None:
    (file,) = TEXTS.glob(f"{list(COMMANDS).index(page):03}_*.txt")
    text = file.read_text()
    for command in COMMANDS[page]:
        assert command in text
    if page == "recbole":  # what its reader writes: the last of the configs that it shows
        shown = text.rpartition("    # dataset config")[2].partition("\n1. Single node")[0]
        assert yaml.safe_load(shown) == yaml.safe_load((PAGES / page / "test.yaml").read_text())
    if page == "paddlerec":  # what it adds to configs, and what it has its script set
        script = (PAGES / page / "tools" / "run_gpubox.sh").read_text()
        for line in text.rpartition("29011 is occupied")[2].splitlines():
            assert line.startswith(("#", "export FLAGS")) or line.strip("`") in script
        shown = text.partition("```yaml\n")[2].partition("```")[0]
        config = yaml.safe_load((PAGES / page / "models/rank/dnn/config.yaml").read_text())
        assert yaml.safe_load(shown)["runner"].items() <= config["runner"].items()


# ---- a folder of a page, and its commands --------------------------------------------------------


@pytest.fixture
def folder(page: str, tmp_path: Path) -> Path:
    """A copy of the page's folder, with data of the kind that it trains on."""
    place = tmp_path / page
    shutil.copytree(PAGES / page, place)
    draw = np.random.default_rng(7)
    if page == "recbole":
        real = Path(os.environ.get("SHOAL_TEST_DATA", "")) / "ml-100k" / "ml-100k.inter"
        (place / "dataset" / "ml-100k").mkdir(parents=True)
        data = place / "dataset" / "ml-100k" / "ml-100k.inter"
        if real.is_file():
            shutil.copy(real, data)
        else:
            pairs = np.argwhere(draw.random((60, 50)) < 0.4)
            lines = ["user_id:token\titem_id:token", *("\t".join(map(str, one)) for one in pairs)]
            data.write_text("\n".join(lines) + "\n")
        set_keys(place / "test.yaml", epochs=3)
    if page == "tdfo":
        lines = ["user_id,book_id,is_read,rating,is_reviewed"]
        for user in range(40):
            lines += [f"{user},{book},1,5,0" for book in draw.permutation(300)[:25]]
        (place / "goodreads_interactions.csv").write_text("\n".join(lines) + "\n")
        config = place / "config.toml"
        config.write_text(config.read_text().replace('"/data"', f'"{place}"'))
    return place


def set_keys(config: Path, **values: Any) -> None:
    """Write other values for some of a config's keys."""
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), **values}))


def start(folder: Path, command: str, *where: str, host: str | None = None, **env: str) -> Command:
    """Type a command in the page's folder (or below it), on one of several hosts if it is named."""
    on = () if host is None else ("ip", "netns", "exec", host)
    path = os.pathsep.join([str(BIN), str(folder), os.environ["PATH"]])
    env = {"PATH": path, "PYTHONPATH": f"{folder}:{ROOT}", "OMP_NUM_THREADS": "1", **env}
    return Command((*on, "bash", "-c", command), folder.joinpath(*where), **env)


def run_of(folder: Path, *commands: Command) -> Path:
    """The one run that commands made, when all have ended well."""
    status = [one.wait() for one in commands]
    assert status == [0] * len(commands), "\n".join(one.output for one in commands)
    (run,) = (folder / "runs").iterdir()
    return run


# ---- in short: every page, by few processes ------------------------------------------------------


def typed(folder: str, script: str, *words: str) -> None:
    """`python SCRIPT WORDS` in a process that has imported all already."""
    os.chdir(folder)
    sys.argv = [script, *words]
    runpy.run_path(script, run_name="__main__")


def do(folder: Path, command: str) -> None:
    """The same, and that it ends well."""
    _, script, *words = command.split()
    process = forked(typed, str(folder), script, *words)
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize("page", ["recbole"])
def test_recbole_in_short(folder: Path) -> None:
    do(folder, RECBOLE + "--nproc=1 --epochs=1 --run.trackers=[]")
    found = result(run_of(folder))
    assert (found["model"], found["dataset"], found["epochs"]) == ("BPR", "ml-100k", 1)


@pytest.mark.parametrize("page", ["paddlerec"])
def test_paddlerec_in_short(folder: Path) -> None:
    set_keys(folder / "models/rank/dnn/config.yaml", data=synthetic(600))
    found = result(run_of(folder, start(folder, COMMANDS["paddlerec"][0])))
    assert (found["model"], found["world_size"]) == ("DNN", 1)


def synthetic(samples: int) -> dict[str, Any]:
    return {"format": "synthetic_clicks", "clicks": {"synthetic": {"samples": samples}}}


@pytest.mark.parametrize("page", ["torchrec"])
def test_bert4rec_in_short(folder: Path) -> None:
    small = "--num_epochs 1 --emb_dim 8 --max_len 8 --run.trackers=[]"
    do(folder, f"python {BERT4REC.replace(' -- ', ' ')}dmp {small}")
    config = yaml.safe_load((run_of(folder) / "config.yaml").read_text())
    assert (config["strategy"]["name"], config["data"]["name"]) == ("sharded", "random")


@pytest.mark.parametrize("page", ["tdfo"])
def test_goodreads_in_short(folder: Path) -> None:
    pytest.importorskip("polars")
    do(folder, "python preprocessing.py")
    do(folder, "python train.py --n_epochs=1 --run.trackers=[]")
    assert result(run_of(folder))["model"] == "BERT4Rec"


@pytest.mark.parametrize("page", ["deeprec"])
def test_deeprec_in_short(folder: Path) -> None:
    command = start(folder, LAUNCH.replace("<python script.py>", "sharded_variable.py"))
    assert command.wait() == 0, command.output
    assert "losses: [36.0, " in command.output
    asked = start(folder, "python -c 'import tensorflow'")  # the stand-in has its launcher alone
    assert asked.wait() == 1 and "shoal.CollectiveStrategy instead" in asked.output


# ---- whole: every process, several hosts ---------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("page", ["recbole"])
def test_recbole_on_one_host_and_on_two(folder: Path, hosts: Hosts) -> None:
    alone = metrics(run_of(folder, start(folder, RECBOLE + "--nproc=1")))
    shutil.rmtree(folder / "runs")
    four = run_of(folder, start(folder, RECBOLE + "--nproc=4"))
    assert result(four)["world_size"] == 4
    assert_like(metrics(four), alone)
    shutil.rmtree(folder / "runs")
    commands = [
        start(folder, (TWO + offset).replace("183.174.228.81", A), host=name, SHOAL_SECRET=SECRET)
        for name, offset in zip(hosts.names, ("0", "4"))
    ]
    eight = run_of(folder, *commands)
    assert result(eight)["world_size"] == 8
    assert_like(metrics(eight), alone)


def assert_like(found: list[dict[str, Any]], alone: list[dict[str, Any]]) -> None:
    """The losses of a run on one process."""
    losses = [[line["loss"] for line in lines] for lines in (found, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["recbole"])
def test_recbole_from_python(folder: Path) -> None:
    both = [start(folder, command, TMPDIR=str(folder)) for command in COMMANDS["recbole"][:2]]
    assert result(run_of(folder, *both))["world_size"] == 8
    assert "result: {'recall@10'" in both[0].output and "result: None" in both[1].output


@pytest.mark.slow
@pytest.mark.parametrize("page", ["paddlerec"])
def test_servers_on_two_hosts(folder: Path, hosts: Hosts) -> None:
    set_keys(folder / "models/rank/dnn/config.yaml", data=synthetic(3000))
    workers, servers = f"{A}:6170,{B}:6170", f"{A}:6180,{B}:6180"
    command = COMMANDS["paddlerec"][1].replace(ADDRESSED, workers, 1).replace(ADDRESSED, servers)
    made = start(folder, "python -m shoal keys make keys")
    assert made.wait() == 0, made.output
    more = " -o strategy.ps.keys=keys run.output=runs/both"
    both = [start(folder, command + more, host=name) for name in hosts.names]
    assert result(run_of(folder, *both))["world_size"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("page", ["paddlerec"])
@pytest.mark.parametrize("kind", ["", "static_"])
def test_collective_on_one_host_and_on_two(kind: str, folder: Path, hosts: Hosts) -> None:
    where = ("models", "rank", "wide_deep")
    one = run_of(folder.joinpath(*where), start(folder, PADDLE.format("", kind) + CPUS, *where))
    assert result(one)["world_size"] == 1  # no GPU is here; it is a process for each
    shutil.rmtree(folder.joinpath(*where, "runs"))
    ips = IPS.replace("xx.xx.xx.xx", A).replace("yy.yy.yy.yy", B).replace(",1,2,3,4,5,6,7", "")
    both = [
        start(folder, PADDLE.format(ips, kind) + CPUS, *where, host=name, SHOAL_SECRET=SECRET)
        for name in hosts.names
    ]
    assert result(run_of(folder.joinpath(*where), *both))["world_size"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("page", ["paddlerec"])
def test_gpubox(folder: Path) -> None:
    command = start(folder, "sh tools/run_gpubox.sh" + CPUS, FLAGS_selected_gpus="0,1")
    run = run_of(folder, command)
    assert result(run)["world_size"] == 2 and "strategy sharded" in command.output


# At a size for this machine, and without dropout, so that numbers can be equal.
SMALL = {
    "3000": "40",
    "500000": "90",
    "8000000": "900",
    "--emb_dim 128": "--emb_dim 16",
    " -j 1x8": " -j 1x2",
}
PLAIN = ["--model.hidden_dropout_prob=0", "--model.attn_dropout_prob=0", *QUIET]


@pytest.mark.parametrize("page", ["torchrec"])
@pytest.mark.parametrize("number, mode", [(0, "dmp"), (1, "ddp"), (4, "dmp")])
def test_bert4rec_by_torchx(number: int, mode: str, folder: Path) -> None:
    need_torchx()
    command, flags = COMMANDS["torchrec"][number], REPRODUCE.partition(" -- ")[2]
    if number < 4:  # the flags that the page shares between all its runs
        command += flags.removeprefix("--dataset_name random").removesuffix(" --mode dmp")
    for old, new in SMALL.items():
        command, flags = command.replace(old, new), flags.replace(old, new)
    flags = flags.replace("--train_batch_size 8", "--train_batch_size 16")  # of two processes
    do(folder, f"python bert4rec_main.py {flags} {' '.join(PLAIN)}")
    alone = result(run_of(folder))
    shutil.rmtree(folder / "runs")
    run = run_of(folder, start(folder, f"{command} {' '.join(PLAIN)}", LOGLEVEL="WARNING"))
    found, config = result(run), yaml.safe_load((run / "config.yaml").read_text())
    assert found["world_size"] == 2 and config["train"]["batch_size"] == 16
    assert config["strategy"]["name"] == {"dmp": "sharded", "ddp": "ddp"}[mode]
    for part in ("test", "best_valid"):
        assert found[part] == pytest.approx(alone[part], rel=0, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["tdfo"])
def test_goodreads_by_torchx(folder: Path) -> None:
    need_torchx()
    pytest.importorskip("polars")
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("n_epochs = 10", "n_epochs = 1"))
    first = start(folder, COMMANDS["tdfo"][0])
    assert first.wait() == 0, first.output
    assert result(run_of(folder, start(folder, COMMANDS["tdfo"][1])))["world_size"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("page", ["deeprec"])
@pytest.mark.parametrize("script", ["sharded_variable.py", "estimator_movielens.py"])
def test_deeprec_on_two_processes(script: str, folder: Path) -> None:
    words = script if script.startswith("sharded") else f"{script} --steps 50 --model_dir ./"
    command = start(folder, LAUNCH.replace("<python script.py>", f"--nproc=2 {words}"))
    assert command.wait() == 0, command.output
    if words != script:  # the last line of its listing: an export into the folder it runs in
        (exported,) = folder.glob("[0-9]*")
        assert (exported / "manifest.json").is_file()
    else:
        assert "losses: [36.0, " in command.output
