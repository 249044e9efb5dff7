"""Models with random weights, made on the device from a configuration alone, since a step costs the same with any."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import init_empty_weights
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from specdec_cli.runtime.checkpoints.families import auto_class

SEED = 0
SPREAD = 0.02  # the usual initialisation; larger values overflow deep models in float16


def dummy_model(
    config: PreTrainedConfig, dtype: torch.dtype, device: torch.device, trust_remote_code: bool
) -> PreTrainedModel:
    """A model of the configuration's shape, matrices normally distributed, vectors 1, made where it is used."""
    with init_empty_weights():
        model: Any = auto_class(config).from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)
    generator = torch.Generator(device).manual_seed(SEED)
    made: dict[int, nn.Parameter] = {}  # a tied weight is one parameter in two places
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in made:
                tensor = torch.ones(parameter.shape, dtype=dtype, device=device)
                if parameter.ndim > 1:
                    tensor.normal_(0.0, SPREAD, generator=generator)
                made[id(parameter)] = nn.Parameter(tensor, requires_grad=False)
            setattr(module, name, made[id(parameter)])
    model.to(device)  # buffers
    model.tie_weights()
    result: PreTrainedModel = model.eval()
    return result
