"""What stands against plain decoding: an arm for each draft and K, and transformers' own beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from specdec_cli.commands.bench.request import BenchRequest
from specdec_cli.drafters import make_drafter
from specdec_cli.drafters.spec import DraftSpec, parse_draft
from specdec_cli.measurement.arms import Arm, LoopArm, PeerArm
from specdec_cli.measurement.benchmark import Contest
from specdec_cli.runtime.checkpoints.reading import Report
from specdec_cli.runtime.devices import clock_for
from specdec_cli.runtime.pairs.pair import Pair, load_pairs, without_recording
from specdec_cli.runtime.pairs.peers import transformers_generate
from specdec_cli.settings import NO_DRAFT, KChoice, ModelSettings, SamplingSettings

Clock = Callable[[], float]


def load_peers(request: BenchRequest, pairs: Sequence[Pair], report: Report) -> list[Pair]:
    """The same pairs as transformers makes them, for arms of its own; none where nothing is compared."""
    if request.compare is None:
        return []
    report("loading the models once more, as transformers runs them")
    untouched: list[ModelSettings | None] = []
    for (_, model), pair in zip(request.drafts, pairs, strict=True):
        if model is not None and pair.draft_checkpoint is not None:  # what `auto` came to, not another choice
            model = replace(model, fuse=False, quantize=pair.draft_checkpoint.quantize)
        untouched.append(model)
    return load_pairs(replace(request.target, fuse=False), untouched, report)


def contests(request: BenchRequest, pairs: Sequence[Pair], peers: Sequence[Pair]) -> dict[float, Contest]:
    """A contest for each temperature, with drafters that have learnt nothing yet."""
    devices = dict.fromkeys(device for pair in pairs for device in pair.devices)
    clock = without_recording(clock_for(*devices), pairs)
    return {
        temperature: _contest(request, pairs, peers, replace(request.sampling, temperature=temperature), clock)
        for temperature in request.settings.temperatures
    }


def _contest(
    request: BenchRequest, pairs: Sequence[Pair], peers: Sequence[Pair], sampling: SamplingSettings, clock: Clock
) -> Contest:
    end_ids = frozenset() if request.settings.ignore_end_token else pairs[0].checkpoint.end_ids
    target, simulated = pairs[0].target, request.settings.simulated_acceptance

    def loop_arm(spec: DraftSpec, k: KChoice, pair: Pair) -> LoopArm:
        # One an arm: none learns from another.
        drafter = make_drafter(
            spec, pair.drafter_parts(sampling, request.settings.draft_stop, request.settings.draft_tree)
        )
        return LoopArm(spec.name, k, target, drafter, sampling, clock, end_ids, simulated)

    arms: list[Arm] = []
    for (spec, _), pair in zip(request.drafts, pairs, strict=True):
        arms += [loop_arm(spec, k, pair) for k in request.settings.ks]
    if request.compare == "transformers":
        arms += _transformers(request, peers, sampling, clock)
    return Contest(loop_arm(parse_draft(NO_DRAFT), 0, pairs[0]), arms, sampling)


def _transformers(
    request: BenchRequest, peers: Sequence[Pair], sampling: SamplingSettings, clock: Clock
) -> list[PeerArm]:
    """Its plain generation, and its speculation beside every draft and K that it has a form for."""
    plain = transformers_generate(peers[0], sampling, None)
    arms = [PeerArm("transformers generate", NO_DRAFT, 0, sampling.temperature, plain, clock)]
    for (spec, _), pair in zip(request.drafts, peers, strict=True):
        known = (spec.is_model and pair.head is None) or spec.prompt_lookup is not None
        if not known:  # to transformers
            continue
        label = "transformers assisted" if spec.is_model else "transformers prompt lookup"
        label += f" by {spec.name}" if len(peers) > 1 else ""
        for k in (k for k in request.settings.ks if isinstance(k, int)):
            assisted = transformers_generate(pair, sampling, k, spec.prompt_lookup and spec.prompt_lookup[0])
            arms.append(PeerArm(label, spec.name, k, sampling.temperature, assisted, clock))
    return arms
