"""What `pair-check --probe` measures: models that compute blocks wrongly are caught, and figures are what they say."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from specdec_cli.commands import pair_check as command
from specdec_cli.decoding.seeds import answer_seed
from specdec_cli.drafters.draft_model import DraftModel
from specdec_cli.drafters.early_exit import EarlyExit
from specdec_cli.errors import OutOfMemoryError, SpecdecError
from specdec_cli.measurement import cache_check, probe, probe_advice
from specdec_cli.measurement.cache_check import TOLERANCE, check_cache, tried_windows
from specdec_cli.measurement.probe import Acceptance, Costs, measure_acceptance, measure_costs
from specdec_cli.measurement.probe_advice import best_k, predict, recommendation
from specdec_cli.measurement.statistics import clustered_mean
from specdec_cli.runtime.models.early_exit import EarlyExitModel
from specdec_cli.runtime.models.transformers_model import TransformersModel
from specdec_cli.runtime.models.windows import CACHED, MASKED, declared_windows
from specdec_cli.runtime.pairs.pair import Pair
from specdec_cli.settings import SamplingSettings
from specdec_cli.theory import speedup

Specdec = Callable[..., tuple[int, str, str]]
TEXT = list(b"def add(a, b):\n    return a + b  # and a little more, so that a block fits\n")
SAMPLED = SamplingSettings(temperature=1.0)
GREEDY = SamplingSettings(temperature=0.0)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options for a target and a smaller draft, both random."""
    target = tiny.save(tmp_path_factory.mktemp("target"), tiny.model(num_hidden_layers=4))
    draft = tiny.save(tmp_path_factory.mktemp("draft"), tiny.model(num_hidden_layers=1, seed=1))
    return "--target", str(target), "--draft", str(draft), "--device", "cpu", "--dtype", "float32"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few repeats and short texts: what is tested is not how fast this machine is."""
    monkeypatch.setattr(probe, "REPEATS", (2, 2))
    monkeypatch.setattr(probe, "WARM_UP", 1)
    monkeypatch.setattr(probe, "NEW_TOKENS", 10)
    monkeypatch.setattr(command.probing, "BUILT_IN_PROMPTS", 2)


def cached(family: str = "llama", **overrides: Any) -> TransformersModel:
    return TransformersModel(tiny.model(family, **overrides), tiny.VOCAB_SIZE)


# -------------------------------------------------------------------------------- caches that compute right
@pytest.mark.parametrize("family", tiny.ROLLABLE)
def test_every_family_that_rolls_back_agrees_with_itself(family: str) -> None:
    """Sliding windows are crossed, since the text is longer than they are."""
    assert len(TEXT) > tiny.WINDOW
    agreement = check_cache(cached(family), TEXT, "float32")
    assert agreement.holds
    assert agreement.block_against_steps < 1e-4


@pytest.mark.parametrize("family", tiny.LOCAL)
def test_local_masks_agree_past_a_window_that_the_text_does_not_reach(family: str) -> None:
    model = cached(family)
    assert check_cache(model, TEXT[:4], "float32", [tiny.WINDOW]).block_against_steps < 1e-4
    assert model.length > tiny.WINDOW


class Forgets(TransformersModel):
    """Right as far as a window of 40, and behind it as if a block began a text."""

    def forward(self, token_ids: Tensor, num_logits: int) -> Tensor:
        logits = super().forward(token_ids, num_logits)
        return logits.flip(0) if self.length > 40 + len(token_ids) else logits


def test_a_block_is_tried_past_every_window() -> None:
    model = Forgets(tiny.model(), tiny.VOCAB_SIZE)
    assert check_cache(model, TEXT[:40], "float32").holds
    assert check_cache(model, TEXT[:40], "float32", [8]).holds
    assert not check_cache(model, TEXT[:40], "float32", [8, 40]).holds


def test_windows_that_are_too_long_to_be_filled_are_not_tried() -> None:
    model = cached(max_position_embeddings=2048)
    longest = cache_check.LONGEST_WINDOW_ON_CPU
    assert tried_windows(model, [8, longest, longest + 1]) == [8, longest]
    assert tried_windows(cached(max_position_embeddings=64), [8, 60]) == [8]


@pytest.mark.parametrize(
    ("family", "names", "windows"),
    [("llama", MASKED, []), ("gpt_neo", MASKED, [tiny.WINDOW]), ("gpt_neo", CACHED, []), ("gemma3", CACHED, [12]),
     ("llama4", CACHED, [12]), ("modernbert_decoder", CACHED, [tiny.WINDOW // 2])],
)  # fmt: skip
def test_windows_are_read_from_the_configuration(family: str, names: tuple[str, ...], windows: list[int]) -> None:
    assert declared_windows(tiny.config(family), names, 256) == windows
    assert declared_windows(tiny.config(family), names, min(windows, default=256)) == []


def test_windows_that_were_not_tried_are_told(
    specdec: Specdec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.save(tmp_path / "model", tiny.model("mistral"))
    monkeypatch.setattr(cache_check, "LONGEST_WINDOW_ON_CPU", tiny.WINDOW - 1)
    chosen = ("--target", folder, "--draft", folder, "--device", "cpu", "--dtype", "float32", "--probe")
    _, out, _ = specdec("pair-check", *map(str, chosen), "--format", "json")
    details = {check["name"]: check["detail"] for check in json.loads(out)["checks"]}
    for role in ("target", "draft"):
        assert details[f"{role}'s cache"].endswith("; past its window of 12 tokens it was not tried")


@pytest.mark.parametrize("length", [2, 3, 40])
def test_short_texts_are_enough(length: int) -> None:
    assert check_cache(cached(), TEXT[:length], "float32").holds


# -------------------------------------------------------------------------------- caches that compute wrong
class Wrong(TransformersModel):
    """A model with one of the mistakes that real ones have had."""

    mistake = ""

    def forward(self, token_ids: Tensor, num_logits: int) -> Tensor:
        later = self.length > 0 and len(token_ids) > 1
        if self.mistake == "a block over a cache starts at position 0" and later:
            before, self._cache, length = self._cache, None, self.length
            super().reset()
            logits = super().forward(token_ids, num_logits)
            self._cache, self.length = before, length
            super().forward(token_ids, num_logits)
            return logits
        logits = super().forward(token_ids, num_logits)
        if self.mistake == "a block is read backwards" and later:
            return logits.flip(0)
        if self.mistake == "not a number" and later:
            return logits * torch.nan
        return logits

    def roll_back(self, num_tokens: int) -> None:
        if self.mistake == "nothing is forgotten" and num_tokens:
            self.length -= num_tokens
            return
        if self.mistake == "one token too few is forgotten" and num_tokens > 1:
            super().roll_back(num_tokens - 1)
            return
        super().roll_back(num_tokens)


BLOCK_MISTAKES = ("a block over a cache starts at position 0", "a block is read backwards", "not a number")
ROLL_BACK_MISTAKES = ("nothing is forgotten", "one token too few is forgotten")


@pytest.mark.parametrize("mistake", [*BLOCK_MISTAKES, *ROLL_BACK_MISTAKES])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_model_that_computes_wrongly_is_caught(mistake: str, dtype: str) -> None:
    """By the tolerance of every number type, so also where rounding is coarse."""
    wrong = Wrong(tiny.model(), tiny.VOCAB_SIZE)
    wrong.mistake = mistake
    agreement = check_cache(wrong, TEXT, dtype)
    assert not agreement.holds
    guilty = "block_against_steps" if mistake in BLOCK_MISTAKES else "rollback_against_recompute"
    assert getattr(agreement, guilty) > 1


def test_what_is_no_number_has_a_json_form() -> None:
    wrong = Wrong(tiny.model(), tiny.VOCAB_SIZE)
    wrong.mistake = "not a number"
    agreement = check_cache(wrong, TEXT, "float32")
    assert math.isinf(agreement.block_against_steps)
    assert agreement.record()["block_against_steps"] is None


def test_weights_that_are_not_numbers_are_refused(pair: tuple[str, ...], specdec: Specdec, tmp_path: Path) -> None:
    broken = tiny.model()
    broken.get_output_embeddings().weight.data.fill_(math.nan)
    options = (*pair[:2], "--draft", str(tiny.save(tmp_path, broken)), "--probe", "--format", "json")
    code, out, _ = specdec("pair-check", *options)
    document = json.loads(out)
    assert (code, document["compatible"]) == (3, False)
    check = document["checks"][-1]
    assert (check["name"], check["status"]) == ("draft's cache", "fail")
    assert "not numbers" in check["detail"]
    assert document["pairs"][0]["probe"]["agreement"]["draft"]["block_against_steps"] is None


@pytest.mark.parametrize("mistake", ["a block is read backwards", "nothing is forgotten"])
def test_the_command_refuses_a_wrong_model(
    mistake: str, pair: tuple[str, ...], specdec: Specdec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wrong, "mistake", mistake)
    for method in ("forward", "roll_back"):
        monkeypatch.setattr(f"specdec_cli.runtime.models.transformers_model.TransformersModel.{method}", lifted(method))
    code, out, _ = specdec("pair-check", *pair, "--probe", "--format", "json")
    document = json.loads(out)
    assert (code, document["compatible"]) == (3, False)
    failed = [check for check in document["checks"] if check["status"] == "fail"]
    assert [check["name"] for check in failed] == ["target's cache", "draft's cache"]
    assert "choose another target" in failed[0]["remedy"]
    assert document["pairs"][0]["probe"]["use"] is False


def lifted(method: str) -> Callable[..., Any]:
    """A method of `Wrong` for a class that it does not inherit from."""
    original = getattr(TransformersModel, method)

    def forward(self: TransformersModel, token_ids: Tensor, num_logits: int) -> Tensor:
        later = self.length > 0 and len(token_ids) > 1
        logits: Tensor = original(self, token_ids, num_logits)
        return logits.flip(0) if later and Wrong.mistake == "a block is read backwards" else logits

    def roll_back(self: TransformersModel, num_tokens: int) -> None:
        if num_tokens and Wrong.mistake == "nothing is forgotten":
            self.length -= num_tokens
        else:
            original(self, num_tokens)

    return forward if method == "forward" else roll_back


# -------------------------------------------------------------------------------------------------- costs
class Clock:
    """Time that passes only when a model says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed:
    """A model whose passes take a fixed time plus some for each token, but twice that in its first passes."""

    def __init__(self, clock: Clock, fixed: float, each: float, slow_passes: int = 0) -> None:
        self.device, self.vocab_size, self.max_length, self.length = torch.device("cpu"), 5, 100, 0
        self._clock, self._fixed, self._each, self._slow = clock, fixed, each, slow_passes

    def reset(self) -> None:
        self.length = 0

    def forward(self, token_ids: Tensor, num_logits: int) -> Tensor:
        self.length += len(token_ids)
        self._slow -= 1
        self._clock.now += (self._fixed + self._each * len(token_ids)) * (2 if self._slow >= 0 else 1)
        return torch.zeros(num_logits, self.vocab_size)

    def roll_back(self, num_tokens: int) -> None:
        self.length -= num_tokens


def test_costs_are_medians_in_target_steps_without_the_warm_up() -> None:
    clock = Clock()
    target, draft = Timed(clock, 0.9, 0.1, slow_passes=12), Timed(clock, 0.2, 0.05)
    costs = measure_costs(target, draft, [1, 2, 3], SAMPLED, clock)
    assert costs.target_step_s == pytest.approx(1.0)
    assert costs.c == pytest.approx(0.25)
    assert costs.v == pytest.approx([1.0 + 0.1 * k for k in range(1, 17)])
    assert costs.scatter == pytest.approx(0.0)
    assert (target.length, draft.length) == (3, 3), "what was timed was rolled back"


def test_a_slow_pair_is_not_repeated_beyond_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "REPEATS", (2, 50))
    clock = Clock()
    measure_costs(Timed(clock, 1.0, 0.0), Timed(clock, 0.1, 0.0), [1, 2], SAMPLED, clock)
    one_repeat = 17 + 3 + 0.3
    assert clock.now == pytest.approx((1 + 2) * one_repeat, abs=2)


def test_a_short_context_gives_fewer_ks() -> None:
    clock = Clock()
    target = Timed(clock, 1.0, 0.0)
    target.max_length = 9
    assert len(measure_costs(target, Timed(clock, 0.1, 0.0), [1, 2, 3, 4], SAMPLED, clock).v) == 4


@torch.inference_mode()
def test_a_draft_on_the_targets_cache_is_timed_there_and_leaves_it_as_it_was() -> None:
    target = cached(num_hidden_layers=3)
    draft = EarlyExitModel(target, 1)
    costs = measure_costs(target, draft, TEXT[:12], SAMPLED, time.perf_counter)
    assert (target.length, draft.length) == (12, 12)
    assert costs.draft_step_s > 0
    block = torch.tensor(TEXT[12:20])
    after = target.forward(block, num_logits=8)
    target.reset()
    target.roll_back(0)
    fresh = target.forward(torch.tensor(TEXT[:20]), num_logits=8)
    assert torch.allclose(after, fresh, atol=1e-4)


# --------------------------------------------------------------------------------------------- acceptance
def test_a_twin_is_always_right() -> None:
    found = measure_acceptance(cached(), DraftModel(cached(), SAMPLED), [TEXT[:8], TEXT[8:20]], SAMPLED, (), Clock())
    assert found.judged > 0
    assert found.alpha == 1.0
    assert found.overlap == pytest.approx(1.0, abs=1e-5)
    assert found.alpha_ci is not None
    assert found.alpha_ci[0] < 1.0, "a few right guesses prove no certainty"


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_acceptance_counts_what_rounds_say(sampling: SamplingSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "NEW_TOKENS", 24)
    target, draft = cached(), cached(seed=1)
    prompts = [TEXT[:8], TEXT[8:20]]
    found = measure_acceptance(target, DraftModel(draft, sampling), prompts, sampling, (), Clock())
    steps = []
    for number, prompt in enumerate(prompts, start=1):
        generation = probe.Generation(
            target, DraftModel(draft, sampling), prompt, num_draft_tokens=probe.ROUND_K, sampling=sampling,
            stopping=probe.Stopping(24), seed=answer_seed(0, number),
        )  # fmt: skip
        steps += [step for step in generation if not step.cut]
    accepted = sum(step.num_accepted for step in steps)
    judged = accepted + sum(step.num_accepted < len(step.draft_token_ids) for step in steps)
    assert (found.rounds, found.judged) == (len(steps), judged)
    assert found.alpha == pytest.approx(accepted / judged)
    assert found.overlap is not None
    assert found.overlap_ci is not None
    assert found.overlap_ci[0] <= found.overlap <= found.overlap_ci[1]


def test_texts_that_end_at_once_leave_acceptance_open() -> None:
    everything = range(tiny.VOCAB_SIZE)
    found = measure_acceptance(cached(), DraftModel(cached(), SAMPLED), [TEXT[:8]], SAMPLED, everything, Clock())
    assert (found.judged, found.alpha, found.overlap) == (0, None, None)
    use, sentence = recommendation(found, Costs(1.0, 0.1, (1.0,)))
    assert use is None
    assert "--prompts" in sentence


def test_a_slow_pair_gets_two_prompts_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    target, draft = cached(), cached()

    def slow(token_ids: Tensor, num_logits: int, forward: Any = target.forward) -> Tensor:
        clock.now += 100.0
        logits: Tensor = forward(token_ids, num_logits)
        return logits

    everything = measure_acceptance(target, DraftModel(draft, GREEDY), [TEXT[:8]] * 4, GREEDY, (), clock)
    monkeypatch.setattr(target, "forward", slow)
    limited = measure_acceptance(target, DraftModel(draft, GREEDY), [TEXT[:8]] * 4, GREEDY, (), clock)
    assert 2 * limited.rounds == everything.rounds > 0


def test_the_mean_of_groups_and_its_interval() -> None:
    assert clustered_mean([]) is None
    assert clustered_mean([[], []]) is None
    mean, (low, high) = clustered_mean([[0.0, 1.0] * 50]) or pytest.fail("there are values")
    assert mean == 0.5
    assert high - mean == pytest.approx(1.96 * math.sqrt(0.2525 / 100), rel=1e-2)
    assert low == pytest.approx(1 - high)
    # The same values, but each prompt is of one kind: no more is known than four prompts tell.
    clustered = clustered_mean([[0.0] * 25, [0.0] * 25, [1.0] * 25, [1.0] * 25])
    assert clustered is not None
    assert clustered[1] == (0.0, 1.0)
    assert clustered_mean([[1.0] * 9]) == (1.0, (1.0, 1.0))


def test_intervals_cover_what_they_claim() -> None:
    """Of 400 draws of six prompts with one true mean, about 95 % of the intervals hold it (at least 88 %)."""
    generator = torch.Generator().manual_seed(5)
    covered = 0
    for _ in range(400):
        groups = []
        for _ in range(6):
            level = 0.7 + 0.1 * (torch.rand(1, generator=generator).item() - 0.5)
            groups.append((level + 0.3 * (torch.rand(30, generator=generator) - 0.5)).tolist())
        found = clustered_mean(groups)
        assert found is not None
        covered += found[1][0] <= 0.7 <= found[1][1]
    assert covered / 400 >= 0.88


@torch.inference_mode()
def test_acceptance_of_the_targets_own_layers_by_hand() -> None:
    """Overlap at the first position is that of the two heads' distributions."""
    target = cached(num_hidden_layers=3)
    drafter = EarlyExit(EarlyExitModel(target, 2), SAMPLED)
    found = measure_acceptance(target, drafter, [TEXT[:8], TEXT[8:20]], SAMPLED, (), Clock())
    assert found.judged > 0
    generation = probe.Generation(
        target, drafter, TEXT[:8], num_draft_tokens=probe.ROUND_K, sampling=SAMPLED, stopping=probe.Stopping(10), seed=0
    )
    first = next(iter(generation)).overlap[0]
    rows = []
    for model in (target, EarlyExitModel(target, 2)):
        target.reset()
        target.roll_back(0)
        rows.append(model.forward(torch.tensor(TEXT[:8]), num_logits=1).softmax(-1)[0])
        model.roll_back(8)
    assert first == pytest.approx(torch.minimum(*rows).sum().item(), abs=1e-5)
    assert first < 0.999


# --------------------------------------------------------------------------------------- recommendation
def acceptance(alpha: float, low: float, high: float) -> Acceptance:
    return Acceptance(0.0, 50, 200, alpha, (low, high), alpha, (low, high), other_s=0.02)


COSTS = Costs(target_step_s=1.0, draft_step_s=0.1, verify_s=tuple(1.0 + 0.02 * k for k in range(1, 17)))


def test_prediction_is_the_extended_form() -> None:
    found = predict(0.8, COSTS, 0.02)
    assert found == pytest.approx([speedup(0.8, k, 0.1, 1 + 0.02 * k, 0.02) for k in range(1, 17)])
    k = best_k(found)
    assert found[k - 1] == max(found)
    assert best_k([1.5, 2.0, 2.0]) == 2


def test_a_good_pair_is_recommended_with_its_k() -> None:
    use, sentence = recommendation(acceptance(0.8, 0.7, 0.9), COSTS)
    speedups = predict(0.8, COSTS, 0.02)
    k = best_k(speedups)
    assert use is True
    assert f"Use it with --k {k}: expect about {speedups[k - 1]:.2f}x" in sentence
    assert f"{predict(0.7, COSTS, 0.02)[k - 1]:.2f}x to {predict(0.9, COSTS, 0.02)[k - 1]:.2f}x" in sentence


@pytest.mark.parametrize(
    ("alpha", "costs", "why"),
    [
        (
            0.3,
            Costs(1.0, 0.5, (1.0,) * 16),
            "a draft step costs 0.50 target steps, more than an alpha of 0.30 pays for",
        ),
        (0.6, Costs(1.0, 0.2, (1.5,) * 16), "verifying 1.50"),
    ],
)
def test_a_bad_pair_is_refused_with_the_reason(alpha: float, costs: Costs, why: str) -> None:
    use, sentence = recommendation(acceptance(alpha, alpha - 0.05, alpha + 0.05), costs)
    assert use is False
    assert sentence.startswith("Do not use it: at best ")
    assert why in sentence


@pytest.mark.parametrize(("scatter", "use"), [(0.1, True), (0.6, True), (1.5, None)])
def test_a_disturbed_machine_is_told_about(scatter: float, use: bool | None) -> None:
    costs = Costs(1.0, 0.1, (1.0,) * 16, scatter=scatter)
    found, sentence = recommendation(acceptance(0.8, 0.7, 0.9), costs)
    assert found is use
    assert ("close other programs" in sentence) == (scatter > 0.25)


# ------------------------------------------------------------------------------------------- the command
@pytest.fixture
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else runs here while the tests do."""
    monkeypatch.setattr(probe_advice, "DISTURBED", math.inf)


def test_the_demo_pair_is_measured(quiet_machine: None, specdec: Specdec) -> None:
    code, out, err = specdec("pair-check", "--device", "cpu", "--dtype", "float32", "--probe", "--format", "json")
    assert code == 0, err
    document = json.loads(out)
    measured = document["pairs"][0]["probe"]
    assert list(measured) == [
        *(
            "agreement",
            "acceptance",
            "cost",
            "predicted",
            "use",
            "sentence",
            "target",
            "draft",
            "quantisation",
            "readings",
        )
    ]
    assert measured["quantisation"] is None
    assert [a["temperature"] for a in measured["acceptance"]] == [0.0, 1.0]
    assert [entry["k"] for entry in measured["cost"]["v"]] == list(range(1, 17))
    first, predicted = measured["acceptance"][0], measured["predicted"][0]
    cost = measured["cost"]
    for k, (v, entry) in enumerate(zip(cost["v"], predicted["speedups"], strict=True), start=1):
        expected = speedup(first["alpha"], k, cost["c"], v["v"], first["other_s"] / cost["target_step_s"])
        assert entry == {"k": k, "speedup": pytest.approx(expected)}
    assert predicted["speedup"] == max(entry["speedup"] for entry in predicted["speedups"])
    names = [check["name"] for check in document["checks"]]
    assert names[-3:] == ["target's cache", "draft's cache", "speed"]
    assert {c["status"] for c in document["checks"][-3:-1]} == {"ok"}


def test_it_ends_in_one_sentence(quiet_machine: None, pair: tuple[str, ...], specdec: Specdec, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("def f(x):\nimport os\n", encoding="utf-8")
    code, out, err = specdec("pair-check", *pair, "--probe", "--prompts", prompts, "--quiet")
    assert (code, err) == (0, "")
    last = " ".join(out[out.rindex("\ncompatible") + 1 :].split())
    assert ("Use it with --k " in last) != ("Do not use it: at best " in last)
    assert out.count("expect about") + out.count("at best") == 1


def test_the_targets_own_layers_are_measured(
    quiet_machine: None, pair: tuple[str, ...], specdec: Specdec, tmp_path: Path
) -> None:
    """Without a second model: its tokenizer, memory and cache are not there to be looked at."""
    options = ("pair-check", "-t", pair[1], "-d", "early-exit:2", "--device", "cpu", "--dtype", "float32", "--probe")
    code, out, err = specdec(*options, "--format", "json")
    assert code == 0, err
    document = json.loads(out)
    assert document["settings"]["drafts"] == [{"source": "early-exit:2"}]
    assert document["draft"] == "early-exit:2"
    names = [check["name"] for check in document["checks"]]
    assert names == [
        "vocabulary", "layers", "architecture", "roll back", "rotary embedding", "context", "memory",
        "target's cache", "speed",
    ]  # fmt: skip
    assert {check["status"] for check in document["checks"][:-1]} == {"ok"}
    assert document["memory"]["draft"] is None
    weights = document["memory"]["target"]["weights_bytes"]
    (device,) = document["memory"]["devices"]
    assert device["needed_bytes"] < 1.3 * (weights + document["memory"]["target"]["kv_bytes"])
    (found,) = document["pairs"]
    assert (found["cost"], found["elsewhere"]) == (None, [])
    measured = found["probe"]
    assert measured["draft"] == {"source": "early-exit:2"}
    assert measured["agreement"]["draft"] is None
    assert measured["agreement"]["target"]["block_against_steps"] < 1e-3
    assert measured["cost"]["draft_step_s"] > 0
    assert [a["temperature"] for a in measured["acceptance"]] == [0.0, 1.0]
    assert all(0 <= a["overlap"] <= 1 and a["judged"] > 0 for a in measured["acceptance"])
    assert len(measured["predicted"][0]["speedups"]) == 16
    assert measured["sentence"]
    code, out, _ = specdec(*options, "--quiet", "--verbose")
    assert code == 0
    assert "the first 2 of 4 draft" in out
    assert max(map(len, out.splitlines())) <= 80


def test_own_layers_that_are_not_there_are_not_loaded(
    pair: tuple[str, ...], specdec: Specdec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.probing, "load_pair", lambda *_: pytest.fail("it was loaded"))
    code, out, _ = specdec("pair-check", *pair[:2], "-d", "early-exit:4", "--probe", "--format", "json")
    assert code == 3
    (failed,) = (check for check in json.loads(out)["checks"] if check["status"] == "fail")
    assert (failed["name"], failed["remedy"]) == ("layers", "give a number from 1 to 3")


def test_own_layers_beside_a_model(quiet_machine: None, pair: tuple[str, ...], specdec: Specdec) -> None:
    code, out, err = specdec("pair-check", *pair, "-d", "early-exit:1", "--probe", "--format", "markdown")
    assert code == 0, err
    assert f"| check | {pair[3]} | early-exit:1 |" in out
    assert "| draft's cache | ok | - |" in out


def test_a_target_whose_layers_cannot_be_cut_is_told_with_the_remedy(
    pair: tuple[str, ...], specdec: Specdec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdec_cli.runtime.models.early_exit._first_layers", lambda model, *_: model)
    code, out, _ = specdec("pair-check", *pair[:2], "-d", "early-exit:1", "--probe", "--format", "json")
    check = json.loads(out)["checks"][-1]
    assert (code, check["name"], check["status"]) == (3, "probe", "fail")
    assert "its later layers ran too" in check["detail"]
    assert check["remedy"] == "leave --draft early-exit out"


def test_an_incompatible_pair_is_not_loaded(specdec: Specdec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command.probing, "load_pair", lambda *_: pytest.fail("it was loaded"))
    recurrent = tiny.save(tmp_path / "d", tiny.model("mamba"))
    target = tiny.save(tmp_path / "t")
    code, out, _ = specdec("pair-check", "-t", target, "-d", recurrent, "--probe", "--format", "json")
    assert code == 3
    assert json.loads(out)["pairs"][0]["probe"] is None


@pytest.mark.parametrize(
    ("error", "code"),
    [(OutOfMemoryError("not enough memory: choose a smaller model"), 4), (SpecdecError("damaged: download again"), 1)],
)
def test_a_probe_that_fails_keeps_the_other_answers(
    error: SpecdecError, code: int, specdec: Specdec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> Pair:
        raise error

    monkeypatch.setattr(command.probing, "load_pair", load)
    found, out, _ = specdec("pair-check", "--probe", "--format", "json")
    document = json.loads(out)
    assert (found, document["compatible"]) == (code, None)
    assert document["checks"][0]["status"] == "ok"
    check = document["checks"][-1]
    assert (check["name"], check["decided"]) == ("probe", False)
    assert check["remedy"] == str(error).partition(": ")[2]


def test_a_quantised_target_is_compared_with_itself(pair: tuple[str, ...], specdec: Specdec) -> None:
    cheap = ["--quantize", "int8", "--draft-quantize", "int4", "--draft-vocab", "100"]
    code, out, err = specdec("pair-check", *pair, "--probe", *cheap, "--format", "json")
    assert code == 0, err
    document = json.loads(out)
    measured = document["pairs"][0]["probe"]
    assert 0.8 < measured["quantisation"]["overlap"] < 1
    assert measured["quantisation"]["positions"] == 2 * command.probing.COMPARED_TOKENS
    assert (measured["target"]["quantize"], measured["draft"]["quantize"]) == ("int8", "int4")
    assert measured["draft"]["head_rows"] < tiny.VOCAB_SIZE
    assert document["settings"]["target"]["quantize"] == "int8"
    check = next(c for c in document["pairs"][0]["checks"] if c["name"] == "quantised target")
    assert "int8" in check["detail"]
    assert "choose the same token at" in check["detail"]
    assert "target weights rounded to int8" in err
    memory = document["pairs"][0]["memory"]["target"]
    assert memory["weights_bytes"] < memory["parameters"] * 2.5  # an embedding in float32, the rest in bytes
    code, plain, _ = specdec("pair-check", *pair, "--format", "json")
    assert json.loads(plain)["pairs"][0]["memory"]["target"]["weights_bytes"] == memory["parameters"] * 4
