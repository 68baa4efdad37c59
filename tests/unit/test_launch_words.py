"""Words of other launchers' command lines."""

from __future__ import annotations

import pytest

from shoal.command.arguments import as_paddle_launches, split_arguments


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
