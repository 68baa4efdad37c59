"""How the values of RecBole's keys are read, where they are not the same in Shoal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shoal.compat.dialects.paddlerec_values import as_lower
from shoal.config.dialect import Translation
from shoal.config.errors import did_you_mean
from shoal.config.yaml_io import inline

# How single values are read ----------------------------------------------------------------------


def as_list(value: Any) -> Any:
    """RecBole takes one value for a list of one."""
    return [value] if isinstance(value, str | int) and not isinstance(value, bool) else value


def as_switch(value: Any) -> Any:
    """A truth value; RecBole's files also write it as 1 or 0."""
    return bool(value) if type(value) is int and value in (0, 1) else value


def as_interval(value: Any) -> Any:
    """null is no limit; [5,10] without quotes is a list in YAML, and read as an interval there."""
    if value is None:
        return "[0,inf)"
    return inline(value).replace(" ", "") if isinstance(value, list) else value


def as_gpu_ids(value: Any) -> Any:
    """Nothing means no GPU there; here null means all."""
    if value is None:
        return ""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value) if type(value) is int else value


def as_columns(value: Any) -> Any:
    """File suffix -> list of columns; `*` for a whole file has no counterpart."""
    if isinstance(value, dict):
        for suffix, columns in value.items():
            if columns == "*":
                raise ValueError(f"`*` is refused: name the columns of .{suffix} to load")
    return value


def as_intervals(value: Any) -> Any:
    """Field -> intervals; RecBole also takes lists of tokens."""
    if value is None:
        return {}
    if isinstance(value, dict):
        for name, interval in value.items():
            if isinstance(interval, list):
                raise ValueError(
                    f"a list for {name} is refused: give an interval of a float field: [3,inf)"
                )
    return value


def as_items(value: Any) -> Any:
    """2048 -> `2048 items`."""
    return f"{value} items" if type(value) is int else value


def as_clip(value: Any) -> Any:
    """{max_norm: 5, norm_type: 2} -> 5."""
    if not value:
        return None
    if not isinstance(value, dict):
        raise ValueError(f"given {inline(value)}; write {{max_norm: 5}} or train.clip_grad_norm: 5")
    check_names(value, ("max_norm", "norm_type"))
    if value.get("norm_type", 2) != 2:
        raise ValueError(
            "norm_type other than 2 is refused: gradients are clipped by their L2 norm"
        )
    if "max_norm" not in value:
        raise ValueError("max_norm is missing; write {max_norm: 5}")
    return value["max_norm"]


def check_names(value: dict[str, Any], names: Sequence[str]) -> None:
    for name in value:
        if name not in names:
            raise ValueError(
                f"has no key {name}{did_you_mean(name, names)} (its keys: {', '.join(names)})"
            )


def check_mapping(value: Any, names: Sequence[str]) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"given {inline(value)}; it is a mapping of {', '.join(names)}")
    check_names(value, names)


def is_none(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.lower() == "none")


# Keys that are more than one value ---------------------------------------------------------------


def read_negatives(value: Any) -> Translation:
    """train_neg_sample_args: null for losses over the whole catalogue; missing keys: defaults."""
    if is_none(value):
        return Translation({"train.negatives": None})
    names = {"distribution": "distribution", "sample_num": "num", "alpha": "alpha"}
    names |= {"dynamic": "dynamic", "candidate_num": "candidates"}
    check_mapping(value, list(names))
    if "distribution" in value and is_none(value["distribution"]):
        return Translation({"train.negatives": None})
    return Translation({"train.negatives": {names[key]: given for key, given in value.items()}})


ORDERS = {"RO": "random", "TO": "time"}


def read_eval_args(value: Any) -> Translation:
    """eval_args. A part that is not named takes RecBole's default, whatever the model."""
    check_mapping(value, ("split", "group_by", "order", "mode"))
    said: dict[str, Any] = {}
    implied = {
        "data.split.by": "ratio",
        "data.split.ratio": [0.8, 0.1, 0.1],
        "data.split.order": "random",
        "data.split.group_by": "user",
        "eval.mode": "full",
    }
    if "split" in value:
        said |= _split(value["split"])
    if "order" in value:
        if value["order"] not in ORDERS:
            raise ValueError(f"order: given {inline(value['order'])}; allowed: one of RO, TO")
        said["data.split.order"] = ORDERS[value["order"]]
    # Leave-one-out is always by user, as it is there.
    if "group_by" in value and said.get("data.split.by") != "leave_one_out":
        group_by = value["group_by"]
        said["data.split.group_by"] = "none" if is_none(group_by) else group_by
    if "mode" in value:
        said["eval.mode"] = _mode(value["mode"])
    unsaid = [name for name in ("split", "order", "mode") if name not in value]
    notes = []
    if unsaid:
        notes = [f"eval_args does not name {', '.join(unsaid)}: RecBole's defaults apply"]
    return Translation(said, {k: v for k, v in implied.items() if k not in said}, notes)


def _split(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError(
            f"split: given {inline(value)}; allowed: {{RS: [0.8, 0.1, 0.1]}}, {{LS: test_only}}"
        )
    ((kind, argument),) = value.items()
    if kind == "RS":
        return {"data.split.by": "ratio", "data.split.ratio": argument}
    if kind == "LS":
        return {"data.split.by": "leave_one_out", "data.split.leave": argument}
    raise ValueError(f"split: {kind} is refused: splits are RS (by ratio) and LS (leave one out)")


def _mode(value: Any) -> Any:
    """A mode for each split; where only one of them has a mode, the other has it too."""
    if isinstance(value, dict) and len(value) == 1:
        (mode,) = value.values()
        return {"valid": mode, "test": mode} if set(value) <= {"valid", "test"} else value
    return value


def read_state(value: Any) -> Translation:
    """The level of the log, in any case; null is INFO."""
    level = "info" if value is None else as_lower(value)
    if level == "critical":
        return Translation({"run.log_level": "error"}, notes=["state: critical is read as error"])
    return Translation({"run.log_level": level})


def read_normalize_all(value: Any) -> Translation:
    if value is True:
        return Translation({"data.normalize": "all"})
    if value in (None, False):
        return Translation(implied={"data.normalize": []})
    raise ValueError(f"given {inline(value)}; allowed: true or false")


def read_log_wandb(value: Any) -> Translation:
    if value is True:  # its own default of wandb_project
        return Translation({"run.trackers": ["tensorboard", "wandb"]}, {"run.project": "recbole"})
    if value is None or value is False:
        return Translation()
    raise ValueError(f"given {inline(value)}; allowed: true or false")


def read_load_col(value: Any) -> Translation:
    notes = []
    if value is None:
        notes = ["load_col: null loads all columns of .inter and no other file; name others"]
    return Translation({"data.load": as_columns(value)}, notes=notes)


def read_reproducibility(value: Any) -> Translation:
    notes = [] if value is True else ["reproducibility has no effect: every run is reproducible"]
    return Translation(notes=notes)


def chosen(yes: str, no: str) -> Callable[[Any], str]:
    """How a truth value is read that chooses between two."""

    def read(value: Any) -> str:
        if not isinstance(value, bool | None):
            raise ValueError(f"given {inline(value)}; allowed: true or false")
        return yes if value else no

    return read
