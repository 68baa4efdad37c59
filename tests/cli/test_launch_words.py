"""Words of other launchers' command lines."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from shoal.cli.arguments import split_arguments
from shoal.compat.command_arguments import as_paddle_launches
from shoal.runs.run import resolve


def test_a_program_of_paddlerec_may_stay_in_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tools/static_ps_trainer.py", "-m", "config.yaml", "-o", "runner.epochs=3"]
    assert split_arguments(words) == (["config.yaml"], ["--runner.epochs=3"])
    assert "static_ps_trainer.py is PaddleRec's own program" in capsys.readouterr().err


def test_gpus_are_processes() -> None:
    found = split_arguments(["--gpus", "0,1", "tools/trainer.py", "-m", "config.yaml"])
    assert as_paddle_launches(found[1]) == ['--run.gpu_ids="0,1"', "--launch.nproc=2"]


def test_a_host_finds_its_place_among_ips() -> None:
    # 203.0.113.1 is nobody's address (RFC 5737).
    found = as_paddle_launches(["--ips=203.0.113.1,127.0.0.1", "--gpus=0,1,2"])
    assert set(found) == {
        '--run.gpu_ids="0,1,2"',
        "--launch.nproc=3",
        "--launch.ip=203.0.113.1",
        "--launch.port=6170",
        "--launch.world_size=6",
        "--launch.group_offset=3",
    }
    with pytest.raises(ValueError, match="none is an address of this host"):
        as_paddle_launches(["--ips=203.0.113.1,203.0.113.2", "--nproc=1"])
    assert as_paddle_launches(["--ips=127.0.0.1", "--nproc=2"]) == ["--nproc=2"]


@pytest.mark.parametrize(
    ("words", "gpus", "nproc", "note"),
    [
        ((), 8, 8, "use_fleet): 8 processes, a GPU each: all that are visible"),
        ((), 0, 1, "use_fleet): 1 process, since no GPU can be used here"),
        (("--nproc=2",), 8, 2, None),
        (("--gpus=0,1,2",), 8, 3, None),
        (("--nproc=-1", "--runner.use_fleet=False"), 4, 4, "command line --nproc=-1"),
        (("--runner.use_fleet=False",), 8, 1, None),
        (("--runner.use_gpu=False",), 8, 1, None),
    ],
)
def test_every_visible_gpu_gets_a_process(
    words: tuple[str, ...],
    gpus: int,
    nproc: int,
    note: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As paddle.distributed.launch has it; a batch size per GPU is multiplied by as many."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    config = tmp_path / "dnn" / "config.yaml"
    config.parent.mkdir()
    config.write_text("runner: {use_fleet: True, use_gpu: True, train_batch_size: 10}\n")
    resolved = resolve([config], as_paddle_launches(list(words)))
    assert resolved.config.launch.nproc == nproc
    assert resolved.config.train.batch_size == 10 * nproc
    told = [one for one in resolved.notes if "CUDA_VISIBLE_DEVICES" in one]
    assert [note in one for one in told] == ([True] if note else [])


def test_ips_alone_take_every_visible_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--ips=127.0.0.1,203.0.113.1"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    found = as_paddle_launches(words)
    assert {"--launch.nproc=4", "--launch.world_size=8"} < set(found)
    assert "4 processes here, one for each visible GPU" in capsys.readouterr().err
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(typer.BadParameter, match="there is none; give --nproc N"):
        as_paddle_launches(words)
