"""Random weights and simulated acceptance: for timing a pair that is not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import torch

from specdec_cli.decoding.acceptance import verify
from specdec_cli.runtime.checkpoints.dummy import dummy_model

Specdec = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("family", tiny.ROLLABLE)
def test_a_dummy_model_has_the_shapes_of_the_real_one_and_computes(family: str) -> None:
    real = tiny.model(family)
    dummy = dummy_model(real.config, torch.bfloat16, torch.device("cpu"), False)
    assert {n: p.shape for n, p in dummy.named_parameters()} == {n: p.shape for n, p in real.named_parameters()}
    assert {p.dtype for p in dummy.parameters()} == {torch.bfloat16}
    assert not any(p.is_meta for p in [*dummy.parameters(), *dummy.buffers()])
    tied = real.get_input_embeddings().weight is real.get_output_embeddings().weight
    assert (dummy.get_input_embeddings().weight is dummy.get_output_embeddings().weight) == tied
    with torch.inference_mode():
        logits = dummy(input_ids=torch.tensor([[1, 2, 3]])).logits
    assert torch.isfinite(logits).all()
    assert logits.std() > 0


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
def test_the_coin_falls_with_the_given_probability_whatever_the_models_say(alpha: float) -> None:
    rounds, k = 4_000, 3
    generator = torch.Generator().manual_seed(1)
    target_probs = torch.tensor([1.0, 0.0]).expand(rounds, k + 1, 2)  # would refuse every drafted 1
    draft_probs = torch.tensor([0.0, 1.0]).expand(rounds, k, 2)
    ids = torch.ones(rounds, k, dtype=torch.long)
    accepted = verify(target_probs, draft_probs, ids, generator, alpha).num_accepted
    first = (accepted > 0).double().mean()
    assert abs(float(first) - alpha) <= 4 * (alpha * (1 - alpha) / rounds) ** 0.5
    assert int(verify(target_probs, draft_probs, ids, generator).num_accepted.sum()) == 0  # the rule itself


def test_bench_says_that_it_is_simulated_and_needs_no_weights(specdec: Specdec, tmp_path: Path) -> None:
    models = []
    for name in ("target", "draft"):
        folder = tmp_path / name
        tiny.byte_tokenizer().save_pretrained(folder)
        tiny.model("llama").config.save_pretrained(folder)  # no weights in it
        models += [f"--{name}", str(folder)]
    arguments = [
        "bench",
        *models,
        "--dummy-weights",
        "--simulate-acceptance",
        "1",
        "--limit",
        "1",
        "-n",
        "8",
        "--device",
        "cpu",
    ]
    code, out, err = specdec(*arguments, "--prompts", "code", "--k", "3", "--raw")
    assert (code, "SIMULATED: random weights and acceptance simulated at 1" in out) == (0, True), err
    assert "random weights" in err
    assert "Lossless" not in out
    code, out, _ = specdec(*arguments, "--format", "json", "--prompts", "code", "--k", "3", "-q")
    record = json.loads(out)
    assert record["settings"]["simulated_acceptance"] == 1
    assert record["settings"]["target"]["dummy_weights"] is True
    assert record["results"][0]["lossless"]["checked"] is False
    assert record["results"][0]["acceptance"]["alpha"] == 1


def test_simulated_acceptance_must_be_a_probability_and_stands_alone(specdec: Specdec) -> None:
    code, _, err = specdec("bench", "--simulate-acceptance", "1.5")
    assert (code, err.count("\n")) == (2, 1)
    assert "--simulate-acceptance" in err
    code, _, err = specdec("bench", "--simulate-acceptance", "0.5", "--compare", "transformers")
    assert (code, err.count("\n")) == (2, 1)
