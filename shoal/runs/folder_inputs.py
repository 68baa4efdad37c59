"""What a run's folder keeps of what the run was made of: config, code, vocabularies, histories."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.clicks import ClickData
from shoal.config.output import dump
from shoal.config.schema import Config
from shoal.data.dataset import Dataset
from shoal.runs.vocabulary_growth import save_taken, save_vocabularies
from shoal.training.run_folder import RunFolder


def keep_inputs(
    folder: RunFolder, config: Config, code: Mapping[str, bytes], dataset: Dataset | ClickData
) -> None:
    """Write the config, files of custom code, and ids with what each user took."""
    folder.write_config(dump(config))
    for file, text in code.items():
        folder.keep_code(file, text)
    if isinstance(dataset, Dataset):
        save_vocabularies(folder.path, dataset)
        save_taken(folder.path, dataset, config.start.vocabulary)
