"""Models of transformers from a local folder. No code from the folder is executed, and nothing is downloaded."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import detect_fake_mode

from diagnostics.contract.files import read_json, table_beside
from dtk.errors import Errors
from dtk.extras import load, require

_errors = Errors(__file__)
HEADS: dict[str, list[str]] = table_beside(__file__)["heads"]
"""Head -> transformers' class, and the endings of the class names in config.json that have this head."""


class Pretrained(nn.Module):
    """A model of transformers; instantiating this class returns that model, with its own parameter names.

    Args:
        path: folder that `save_pretrained` wrote.
        weights: False initializes randomly, from config.json only.
        head: key of `HEADS`; auto uses the head of the class in config.json. A new head is initialized randomly.
        settings: values of config.json to override: `{num_labels: 4, attention_dropout: 0.1}`.

    DtkError if transformers is not installed, the folder needs custom code, or `causal_lm` is asked of a model that
    attends to the tokens on both sides.
    """

    def __new__(  # noqa: D102
        cls, path: str, weights: bool = True, head: str = "auto", settings: dict[str, Any] | None = None
    ) -> Any:
        require("transformers", "model=hf", "hf")
        transformers = load("transformers")
        transformers.utils.logging.disable_progress_bar()
        local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            config = transformers.AutoConfig.from_pretrained(path, **local, **{"use_cache": False, **(settings or {})})
            named = str((config.architectures or [""])[0])
            if (fitting := fitting_head(named, head)) is None:
                raise _errors("unknown_task", path=path, named=named or "its config.json", heads="|".join(HEADS))
            kind: Any = getattr(transformers, HEADS[fitting][0])
            for_shapes = torch.get_default_device().type == "meta" or detect_fake_mode() is not None
            if weights and not for_shapes:
                model = kind.from_pretrained(path, config=config, use_safetensors=True, dtype=torch.float32, **local)
            else:
                model = kind.from_config(config, trust_remote_code=False, dtype=torch.float32)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise _errors("unusable", path=path, why=" ".join(str(error).split())[:300]) from error
        if fitting == "causal_lm" and (switch := _switch_to_causal(model, transformers.MODEL_FOR_MASKED_LM_MAPPING)):
            raise _errors("not_causal", path=path, kind=type(model).__name__, switch=switch)
        if fitting == "sequence_classification" and config.pad_token_id is not None:
            model.register_forward_pre_hook(_attend_to_text, with_kwargs=True)
        return model.train()


def fitting_head(named: str, head: str) -> str | None:
    """Return the key of `HEADS` that `head` names, or that of the class `named` in config.json with `head=auto`."""
    matches = (key for key, (_, *ends) in HEADS.items() if key == head or (head == "auto" and named.endswith((*ends,))))
    return next(matches, None)


def _switch_to_causal(model: Any, masked: Any) -> str | None:
    """Return the key of config.json that makes the attention of a causal language model causal, if it is not."""
    default_config = type(model.config)()
    switch = next((key for key in ("is_decoder", "causal") if hasattr(default_config, key)), None)
    if switch is None or getattr(model.config, switch):
        return None
    causal = {module.is_causal for module in model.modules() if hasattr(module, "is_causal")}
    attends_to_both_sides = True not in causal if causal else type(model.config) in masked
    return switch if attends_to_both_sides else None


def sees_the_next_token(model: Any) -> bool:
    """Whether a `model` section chooses a model of masked tokens, which attends to both sides of each."""
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):  # Another model, or no such folder.
        named = read_json(Path(model.path) / "config.json", follow=True)["architectures"][0]
        return fitting_head(str(named), model.arguments.get("head", "auto")) == "masked_lm"
    return False


def _attend_to_text(model: Any, inputs: tuple[Any, ...], more: dict[str, Any]) -> Any:
    if len(inputs) == 1 and isinstance(inputs[0], Tensor) and "attention_mask" not in more:
        more = {**more, "attention_mask": (inputs[0] != model.config.pad_token_id).long()}
    return inputs, more
