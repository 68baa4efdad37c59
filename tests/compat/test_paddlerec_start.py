"""What a config of PaddleRec starts: the model, the batch, readers, programs and GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from paddlerec_configs import DNN, PAGE, Write, errors_of, write

from shoal import config as room
from shoal.compat.dialects import paddlerec
from shoal.config import ConfigError
from shoal.distributed.gpus import check_gpus
from shoal.distributed.hosts import WorldError
from shoal.runs.run import resolve, train

__all__ = ["write"]  # used by being there


def test_a_batch_per_worker_is_multiplied_once_and_the_log_says_so(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write(DNN)
    resolved = resolve([path], ["--nproc=4"])
    assert resolved.config.train.batch_size == 2048
    (note,) = [note for note in resolved.notes if "×" in note]
    assert "512 × 4 processes = train.batch_size: 2048" in note and ":6 (PaddleRec key" in note
    (tmp_path / "dumped.yaml").write_text(room.dump(resolved.config))
    assert resolve([tmp_path / "dumped.yaml"]).config == resolved.config
    # A key of Shoal's is global as ever.
    assert resolve([path], ["--nproc=4", "--train.batch_size=64"]).config.train.batch_size == 64
    for name, value in {"RANK": "1", "WORLD_SIZE": "3"}.items():  # workers of a launcher
        monkeypatch.setenv(name, value)
    assert resolve([path]).config.train.batch_size == 1536


def test_a_batch_per_worker_is_not_multiplied_where_workers_update_separately(write: Write) -> None:
    # DNN says sync_mode async; `shoal launch` brings the servers.
    words = ["--strategy=ps", "--nproc=4"]
    assert resolve([write(DNN)], words).config.train.batch_size == 512
    words.append("--runner.sync_mode=sync")
    assert resolve([write(DNN)], words).config.train.batch_size == 2048


def test_the_number_of_rows_can_be_taken_back(write: Write) -> None:
    words = ["--data.clicks.rows=null", "--rows.admission.threshold=5"]
    assert resolve([write(DNN)]).config.data.clicks.rows == 1000001
    assert resolve([write(DNN)], words).config.data.clicks.rows is None


def test_the_model_is_named_by_its_folder_or_an_option(write: Write) -> None:
    for folder, model in paddlerec.FOLDERS.items():
        assert resolve([write("runner: {epochs: 1}", folder)]).config.model.name == model
    path = write("runner: {epochs: 1}", "mine")
    error = errors_of(path)
    assert "its folder is mine" in error and "add --model=NAME" in error
    assert resolve([path], ["--model=deepfm"]).config.model.name == "DeepFM"
    assert resolve([path], ["--model=wide_deep"]).config.model.name == "WideDeep"
    assert resolve([write(DNN)], ["--model=WideDeep"]).config.model.name == "WideDeep"
    both = write("model: DLRM\nrunner: {epochs: 1}")
    assert resolve([both]).config.model.name == "DLRM"
    with pytest.raises(ConfigError, match="there is no config file"):
        resolve((), ["--runner.epochs=3"])
    config = resolve((), (), {"model": "DNN", "runner": {"epochs": 3}}).config
    assert config.train.epochs == 3 and config.data.path == str(Path.cwd())


def test_a_custom_reader(write: Write, tmp_path: Path) -> None:
    text = "runner: {train_reader_path: my_reader, infer_reader_path: my_reader}"
    path = write(text)
    for words in ([], ["--runner.reader_type=RecDataset"], ["--runner.reader_type=DataLoader"]):
        clicks = resolve([path], words).config.data.clicks
        assert clicks.reader == "custom"
        assert clicks.custom == f"{tmp_path / 'dnn' / 'my_reader.py'}:RecDataset"
    clicks = resolve([path], ["--runner.reader_type=QueueDataset"]).config.data.clicks
    assert (clicks.reader, clicks.custom) == ("stream", None)


def test_programs(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(PAGE)
    script = tmp_path / "dnn" / "benchmark_reader.py"
    script.write_text("import sys\nsys.stdout.write(sys.stdin.read())\n")
    command = resolve([path]).config.data.clicks.pipe_command
    assert command == f"python {script}"  # found beside the config, as there
    monkeypatch.chdir(tmp_path / "dnn")
    assert resolve([path]).config.data.clicks.pipe_command == "python benchmark_reader.py"
    # Scripts of PaddleRec's write the format of Paddle and do what Shoal does itself.
    script.write_text("import paddle.distributed.fleet as fleet\n")
    resolved = resolve([path])
    assert resolved.config.data.clicks.pipe_command is None
    assert any("benchmark_reader.py reads lines of slots" in note for note in resolved.notes)
    script.rename(script.with_name("mine.py"))
    error = errors_of(path, "--runner.pipe_command=python mine.py")
    assert "python mine.py is refused: mine.py imports paddle" in error
    resolved = resolve([path], ["--runner.reader_type=DataLoader"])
    assert resolved.config.data.clicks.pipe_command is None
    assert any("reader_type DataLoader has no program" in note for note in resolved.notes)


def test_a_missing_program_is_refused(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(PAGE)
    # PaddleRec's own scripts are not needed, so they need not be there.
    for script in ("benchmark_reader.py", "tools/queuedataset_reader.py", "criteo_reader.py"):
        resolved = resolve([path], [f"--runner.pipe_command=python {script}"])
        assert resolved.config.data.clicks.pipe_command is None
        assert any(f"not run: {script} reads lines of slots" in note for note in resolved.notes)
    for command in ("python scripts/mine.py", "python3 -u scripts/mine.py 5", "scripts/mine.py"):
        error = errors_of(path, f"--runner.pipe_command={command}")
        assert error.endswith(
            f"PaddleRec key runner.pipe_command: given {command}, but there is no scripts/mine.py; "
            f"it was looked for at {tmp_path}/scripts/mine.py, {tmp_path}/dnn/scripts/mine.py, "
            f"{tmp_path}/dnn/mine.py"
        )
    # What a program does with its arguments is its own business.
    for command in ("awk -f x.py", "tool --rules=x.py", "python -m tool x.py"):
        resolved = resolve([path], [f"--runner.pipe_command={command}"])
        assert resolved.config.data.clicks.pipe_command == command


def test_workspace_is_replaced_in_paths(write: Write) -> None:
    path = write("workspace: folder\nrunner: {train_data_dir: '{workspace}/data'}\n")
    assert resolve([path]).config.data.clicks.train == "folder/data"


GPUBOX = "runner: {sync_mode: gpubox, use_fleet: True, use_gpu: True, reader_type: InmemoryDataset}"


def test_gpubox_reads_the_variables_of_its_script(write: Write, monkeypatch) -> None:
    monkeypatch.setenv("FLAGS_selected_gpus", "0,1,2,3")
    monkeypatch.setenv("PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:29011")
    monkeypatch.setenv("PADDLE_PSERVER_PORT_ARRAY", "(29011)")
    path = write(GPUBOX)
    resolved = resolve([path])
    config, told = resolved.config, "\n".join(resolved.notes)
    assert (config.strategy.name, config.run.device) == ("sharded", "cuda")
    assert (config.run.gpu_ids, config.launch.nproc) == ("0,1,2,3", 4)
    assert config.data.clicks.reader == "memory"
    assert "4 processes" in told and "PADDLE_PSERVER_PORT_ARRAY" in told
    assert "InmemoryDataset alone" not in told
    told = "\n".join(resolve([path], ["--runner.reader_type=QueueDataset"]).notes)
    assert "InmemoryDataset alone" in told


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PADDLE_PSERVERS_IP_PORT_LIST", "10.0.0.1:29011"),
        ("PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:29011,127.0.0.1:29012"),
        ("FLAGS_selected_gpus", "0,gpu1"),
        ("TRAINING_ROLE", "PSERVER"),
        ("PADDLE_TRAINERS_NUM", "2"),
    ],
)
def test_gpubox_refuses_by_name(name, value, write: Write, monkeypatch) -> None:
    monkeypatch.setenv(name, value)
    assert f"{name} is" in errors_of(write(GPUBOX))


def test_gpubox_without_gpus_is_refused_before_a_process_starts(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error names the key that was written, and where."""
    monkeypatch.setenv("FLAGS_selected_gpus", "0,1,2,3,4,5,6,7")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("shoal.distributed.gpus._has_gpus", lambda: False)
    path = write(GPUBOX)
    synthetic = ["--data.clicks.synthetic.samples=500", "--data.format=synthetic_clicks"]
    resolved = resolve([path], [*synthetic, f"--run.output={tmp_path / 'run'}"])
    assert "8 processes, on CPUs, since no GPU can be used here" in "\n".join(resolved.notes)
    started: list[object] = []
    monkeypatch.setattr("shoal.runs.run.train_launched", lambda *given: started.append(given))
    text = rf"run\.device is cuda but .*run\.device: {path}:\d+, PaddleRec key runner\.use_gpu\)"
    with pytest.raises(WorldError, match=text):
        train(resolved)
    assert started == [] and not (tmp_path / "run").exists()


def test_more_processes_than_gpus_are_refused_before_one_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(WorldError, match=r"8 processes on this host but 2 GPU\(s\)"):
        check_gpus("cuda", None, 8)
    for device, processes, share in (("cuda", 2, False), ("cuda", 8, True), ("cpu", 8, False)):
        check_gpus(device, None, processes, share=share)


def test_an_error_names_the_key_of_another_tool_that_was_written(tmp_path: Path) -> None:
    """Any key of any dialect; keys that were written as they are stand alone."""
    path = tmp_path / "test.yaml"
    path.write_text("learning_rate: 0.1\ntrain.batch_size: 64\n")
    resolved = resolve([path], ["--model=BPR", "--epochs=3"])
    text = "train.optimizer.lr is 0.1"
    assert resolved.with_written_keys(text) == (
        f"{text} (train.optimizer.lr: {path}:1, RecBole key learning_rate)"
    )
    assert resolved.with_written_keys("train.batch_size is 64") == "train.batch_size is 64"
