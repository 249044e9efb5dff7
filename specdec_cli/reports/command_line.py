"""The command that generates as was measured, to be pasted into a shell as it is."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields

from specdec_cli.settings import (
    AUTO,
    KEEP,
    NO_DRAFT,
    BenchSettings,
    ConversationSettings,
    GenerationSettings,
    KChoice,
    ModelSettings,
    SamplingSettings,
)

PROMPT = "your prompt"
NO_CONVERSATION = ConversationSettings()
# What the options of the two models are where nothing is said of them.
Defaults = dict[str, str | None]
TARGET_DEFAULTS: Defaults = {
    "revision": None,
    "device": AUTO,
    "dtype": AUTO,
    "quantize": KEEP,
    "graphs": AUTO,
}
DRAFT_DEFAULTS: Defaults = {"revision": None, "quantize": KEEP, "vocab": AUTO}
FOR_BOTH = ("offline", "trust_remote_code", "compile")


def generate_command(
    target: ModelSettings,
    draft: str,
    model: ModelSettings | None,
    k: KChoice,
    sampling: SamplingSettings,
    *,
    draft_stop: float = GenerationSettings.draft_stop,
    draft_tree: int = GenerationSettings.draft_tree,
    conversation: ConversationSettings = NO_CONVERSATION,
) -> str:
    """A line for a POSIX shell, with every option that is not as it would be without.

    Args:
        draft: as --draft names it; NO_DRAFT for plain decoding.
        model: how the checkpoint that it names is loaded; None where it names none.
        k: 0 where nothing is drafted.
    """
    words = ["specdec", "generate", "-t", target.source, "-d", draft]
    if draft != NO_DRAFT:
        words += ["--k", str(k)]
    words += _given(target, TARGET_DEFAULTS, "")
    if model is not None and draft != NO_DRAFT:
        # As the target's, unless they are given.
        beside: Defaults = {"device": target.device, "dtype": target.dtype}
        words += _given(model, DRAFT_DEFAULTS | beside, "draft-")
    words += [f"--{_dashed(name)}" for name in FOR_BOTH if getattr(target, name)]
    if draft_stop and draft != NO_DRAFT:
        words += ["--draft-stop", f"{draft_stop:g}"]
    if draft_tree and draft != NO_DRAFT:
        words += ["--draft-tree", str(draft_tree)]
    greedy = SamplingSettings(temperature=0.0)
    for field in fields(sampling):
        value = getattr(sampling, field.name)
        if value != getattr(greedy, field.name):
            words += [f"--{_dashed(field.name)}", repr(value)]
    if conversation.system is not None:
        words += ["--system", conversation.system]
    for name, value in conversation.template_args.items():
        words += ["--template-arg", f"{name}={json.dumps(value, ensure_ascii=False)}"]
    words += [f"--{_dashed(name)}" for name in ("raw", "plain_content") if getattr(conversation, name)]
    return shlex.join([*words, PROMPT])


def measured_as_it_is(target: ModelSettings, settings: BenchSettings) -> bool:
    """Whether text comes of it at all: not of random weights, nor of an acceptance that is made up."""
    return not target.dummy_weights and settings.simulated_acceptance is None


def _given(settings: ModelSettings, defaults: Defaults, prefix: str) -> list[str]:
    words = []
    for name, default in defaults.items():
        value = getattr(settings, name)
        if value != default and value is not None:
            words += [f"--{prefix}{_dashed(name)}", str(value)]
    return words


def _dashed(name: str) -> str:
    return name.replace("_", "-")
