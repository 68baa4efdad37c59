"""Configs of PaddleRec as people have them, and what tests ask of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.config import ConfigError, Resolved
from shoal.runs.run import resolve

# What PaddleRec's page on distributed training adds to a config.
PAGE = """\
runner:
    # comments may be in any language: 可选
    sync_mode: "async" # sync/async/geo
    geo_step: 400
    split_file_list: False
    thread_num: 1

    reader_type: "QueueDataset"
    pipe_command: "python benchmark_reader.py"
    dataset_debug: False
"""

# The keys of its dnn model.
DNN = """\
runner:
  train_data_dir: "data/sample_data/train"
  train_reader_path: "criteo_reader"
  use_gpu: False
  use_auc: True
  train_batch_size: 512
  epochs: 4
  print_interval: 10
  model_save_path: "out"
  infer_batch_size: 256
  infer_reader_path: "criteo_reader"
  test_data_dir: "../test"
  infer_load_path: "out"
  infer_start_epoch: 0
  infer_end_epoch: 3
  num_workers: 0
  use_inference: True
  save_inference_feed_varnames: ["1", "2", "dense_input"]
  save_inference_fetch_varnames: ["sigmoid_0.tmp_0"]
  sync_mode: "async"
  split_file_list: True
  thread_num: 5
hyper_parameters:
  optimizer:
    class: Adagrad
    learning_rate: 0.01
    strategy: async
  sparse_inputs_slots: 27
  sparse_feature_number: 1000001
  sparse_feature_dim: 11
  dense_input_dim: 13
  fc_sizes: [400, 300]
  distributed_embedding: 0
"""

WIDE_DEEP = """\
runner:
  train_data_dir: data/train
  train_reader_path: criteo_reader
  use_gpu: False
  use_xpu: False
  use_fleet: False
  use_auc: True
  train_batch_size: 50
  epochs: 4
  print_interval: 2
  model_save_path: output_model_wide_deep
  infer_start_epoch: 3
  infer_end_epoch: 4
hyper_parameters:
  optimizer: {class: Adam, learning_rate: 0.001, strategy: async}
  sparse_inputs_slots: 27
  sparse_feature_number: 1000001
  sparse_feature_dim: 9
  dense_input_dim: 13
  fc_sizes: [512, 256, 128, 32]
"""

DLRM = """\
runner: {train_data_dir: data, epochs: 3}
hyper_parameters:
  optimizer: {class: SGD, learning_rate: 0.1}
  sparse_inputs_slots: 27
  dense_input_dim: 13
  bot_layer_sizes: [512, 256, 64, 16]
  sparse_feature_dim: 16
  top_layer_sizes: [512, 256, 2]
  num_field: 26
"""

DCN_V2 = """\
hyper_parameters:
  is_Stacked: True
  use_low_rank_mixture: False
  low_rank: 256
  num_experts: 4
  fc_sizes: [768, 700]
  cross_num: 3
  l2_reg_cross: 0.00003
  dnn_use_bn: False
  clip_by_norm: 10.0
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a config into a folder, as a model's config stands in its folder there."""

    def write(text: str, folder: str = "dnn", name: str = "config.yaml") -> Path:
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
        return path

    return write


def value_of(resolved: Resolved, key: str) -> Any:
    value: Any = resolved.config
    for name in key.split("."):
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    return value


def errors_of(path: Path, *words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve([path], words)
    return str(caught.value)
