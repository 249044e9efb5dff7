"""Train an EAGLE-3 head for the demo target: one layer that reads the target's hidden states and guesses its tokens.

The head ships as `demo:head`. It is written in the layout of the speculators library; tensors that are the target's own
(the embeddings) are left out, and read from the target when the head is used.

How it learns (EAGLE-3, arXiv 2503.01840; the equations are those of `specdec_cli.runtime.heads.eagle3`):

* Half of the text was written by the target itself, at temperatures 0, .8 and 1, behind beginnings of lines of the
  Python standard library; the other half is that library. In both the head must guess what the target would say.
* Training-time test: a head that drafts K tokens reads its own states from the second one on. So each window is passed
  through the head several times; pass j reads what pass j - 1 gave at the same slot, and the token j places further.
  A slot sees the first pass's keys up to itself, and of later passes only its own.
* First the loss is the cross-entropy against the target's distribution, later -log sum min(p, q), whose sum is the
  probability that the exact rule accepts (arXiv 2310.08461 distils by the same quantity).
* What is kept is the state with the most tokens a round on held-out text of the target: 1 + the sum over k of the
  product of the acceptances up to k, the mean of temperature 0 and 1.

The target's states are computed as they are needed and thrown away.

    python benchmarks/train_demo_head.py                  # continues from the last checkpoint
    python benchmarks/train_demo_head.py --export-only    # write the folder from the best state so far
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import silu
from train_demo_pair import Muon, batch_of, read_corpus, schedule
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, rotate_half

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "specdec_cli" / "demo" / "target"
HEAD = ROOT / "specdec_cli" / "demo" / "head"
TAPS = (10, 20, 29)  # outputs of so many layers
INTERMEDIATE = 512
WINDOW = 256
PROMPT = 24
TEMPERATURES = (0.0, 0.8, 1.0, 1.0)
DECAY = 0.85  # of a pass's weight, to the next
EVALUATED = 6  # tokens drafted a round


class Head(nn.Module):
    """EAGLE-3 with one layer, for training: all slots of a window at once.

    Args:
        config: of the layer; `hidden_size` is the target's.
        embedding, lm_head, norm: [vocab, hidden], [vocab, hidden] and [hidden] of the target; the last two are where
            the head's own begin.
    """

    embedding: Tensor

    def __init__(self, config: LlamaConfig, embedding: Tensor, lm_head: Tensor, norm: Tensor) -> None:
        super().__init__()
        size, width = config.hidden_size, config.num_attention_heads * config.head_dim
        self.config = config
        self.register_buffer("embedding", embedding, persistent=False)
        self.fc = nn.Linear(len(TAPS) * size, size, bias=False)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm, self.norm = (
            LlamaRMSNorm(size, config.rms_norm_eps) for _ in range(4)
        )
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(2 * size, width, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(width, size, bias=False)
        self.gate_proj, self.up_proj = (nn.Linear(size, config.intermediate_size, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(config.intermediate_size, size, bias=False)
        self.lm_head = nn.Linear(size, len(lm_head), bias=False)
        with torch.no_grad():
            self.lm_head.weight.copy_(lm_head)
            self.norm.weight.copy_(norm)
        self.rotary = LlamaRotaryEmbedding(config)

    def passes(self, features: Tensor, token_ids: Tensor, number: int) -> Iterator[Tensor]:
        """Logits of each pass: [batch, n, vocab], of the token two places behind a slot's feature, then three, and on.

        Args:
            features: [batch, n, taps * hidden] of the target at places 0 to n - 1.
            token_ids: [batch, n + number] from place 1 on; pass j reads those from place 1 + j on.
        """
        batch, n = features.shape[:2]
        hidden = self.fc(features)
        causal = torch.ones(n, n, dtype=torch.bool, device=features.device).tril()
        first_key = first_value = None
        own: list[tuple[Tensor, Tensor]] = []
        for j in range(number):
            embedded = self.input_layernorm(self.embedding[token_ids[:, j : j + n]])
            both = torch.cat([embedded, self.hidden_norm(hidden)], dim=-1)
            query, key, value = (
                layer(both).view(batch, n, -1, self.config.head_dim).transpose(1, 2)
                for layer in (self.q_proj, self.k_proj, self.v_proj)
            )
            places = torch.arange(j, j + n, device=features.device)[None]
            cos, sin = (part[:, None] for part in self.rotary(hidden, position_ids=places))
            query, key = (part * cos + rotate_half(part) * sin for part in (query, key))
            if first_key is None:
                first_key, first_value = key, value
            else:
                own.append((key, value))
            scores = (query @ first_key.mT).masked_fill(~causal, -torch.inf)
            beside = [(query * k).sum(-1, keepdim=True) for k, _ in own]
            weights = (torch.cat([scores, *beside], dim=-1) * self.config.head_dim**-0.5).softmax(-1)
            attended = weights[..., :n] @ first_value
            for place, (_, v) in enumerate(own):
                attended = attended + weights[..., n + place, None] * v
            hidden = hidden + self.o_proj(attended.transpose(1, 2).reshape(batch, n, -1))
            normed = self.post_attention_layernorm(hidden)
            hidden = hidden + self.down_proj(silu(self.gate_proj(normed)) * self.up_proj(normed))
            yield self.lm_head(self.norm(hidden))

    def tensors(self) -> dict[str, Tensor]:
        """By the names of the speculators library."""
        layer = {
            **{f"self_attn.{name}": getattr(self, name) for name in ("q_proj", "k_proj", "v_proj", "o_proj")},
            **{f"mlp.{name}": getattr(self, name) for name in ("gate_proj", "up_proj", "down_proj")},
            **{name: getattr(self, name) for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")},
        }
        named = {f"layers.0.{name}": module for name, module in layer.items()}
        named |= {name: getattr(self, name) for name in ("fc", "norm", "lm_head")}
        return {f"{name}.weight": module.weight.detach() for name, module in named.items()}


# ------------------------------------------------------------------------------------------- text
def tokens_of(texts: list[str], tokenizer: Any) -> Tensor:
    """1-D ids, texts separated by the end token."""
    encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return torch.tensor([i for ids in encoded for i in [tokenizer.eos_token_id, *ids]])


def beginnings(ids: Tensor, tokenizer: Any, number: int, generator: torch.Generator) -> Tensor:
    """[number, PROMPT] ids that begin where a line does."""
    breaks = torch.tensor(["\n" in tokenizer.decode([i]) for i in range(len(tokenizer))])
    starts = (breaks[ids[: -PROMPT - 1]]).nonzero()[:, 0]
    chosen = starts[torch.randint(len(starts), (number,), generator=generator)]
    return ids[chosen[:, None] + torch.arange(PROMPT)]


@torch.inference_mode()
def written(target: Any, prompts: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """[number, WINDOW + EVALUATED + 1] ids: prompts, and what the target says behind them; end tokens are read on."""
    ids, cache, block = prompts, None, prompts
    while ids.shape[1] < WINDOW + EVALUATED + 1:
        output = target(input_ids=block, cache=cache, use_cache=True, logits_to_keep=1)
        cache, logits = output.cache, output.logits[:, -1]
        if temperature == 0.0:
            block = logits.argmax(-1, keepdim=True)
        else:
            block = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        ids = torch.cat([ids, block], dim=1)
    return ids


def write_texts(target: Any, tokenizer: Any, ids: Tensor, number: int, folder: Path, seed: int) -> Tensor:
    """[about number, length] texts of the target, kept in batches as they come."""
    batch = 64
    parts = []
    for i in range(max(1, number // batch)):
        path = folder / f"{i}.pt"
        if not path.exists():
            generator = torch.Generator().manual_seed(seed * 100_003 + i)
            prompts = beginnings(ids, tokenizer, batch, generator)
            made = written(target, prompts, TEMPERATURES[i % len(TEMPERATURES)], generator)
            torch.save(made, path.with_suffix(".part"))
            os.replace(path.with_suffix(".part"), path)
        parts.append(torch.load(path))
    return torch.cat(parts)


# --------------------------------------------------------------------------------------- training
@torch.no_grad()
def read(target: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Features [batch, n, taps * hidden] and logits [batch, n, vocab] of the target."""
    output = target(input_ids=ids, use_cache=False, output_hidden_states=True)
    return torch.cat([output.hidden_states[tap] for tap in TAPS], dim=-1), output.logits


def loss_of(head: Head, target: Any, windows: Tensor, passes: int, by_overlap: float) -> Tensor:
    """Mean loss of a batch of windows, the passes weighted.

    Args:
        windows: [batch, n] ids.
        by_overlap: share of -log sum min(p, q) in it, from 0 to 1; the rest is cross-entropy.
    """
    features, logits = read(target, windows)
    slots = windows.shape[1] - 1 - passes  # the last pass of the last slot is judged at the last place
    target_probs = logits.softmax(-1)
    total = features.new_zeros(())
    for j, guessed in enumerate(head.passes(features[:, :slots], windows[:, 1:], passes)):
        wanted = target_probs[:, 1 + j : 1 + j + slots]
        log_probs = guessed.log_softmax(-1)
        loss = -(wanted * log_probs).sum(-1).mean() * (1 - by_overlap)
        if by_overlap:
            overlap = torch.minimum(wanted, log_probs.exp()).sum(-1)
            loss = loss - overlap.clamp(min=1e-6).log().mean() * by_overlap
        total = total + DECAY**j * loss
    return total / sum(DECAY**j for j in range(passes))


@torch.inference_mode()
def evaluate(head: Head, target: Any, texts: Tensor) -> dict[str, Any]:
    """Acceptance by position and tokens a round, at temperature 1 (overlap) and 0 (the same most likely token)."""
    overlap, agreed = torch.zeros(EVALUATED), torch.zeros(EVALUATED)
    chain = torch.zeros(EVALUATED)
    for windows in torch.split(texts, 8):
        features, logits = read(target, windows)
        slots = windows.shape[1] - 1 - EVALUATED
        begun = slice(PROMPT, None)
        unbroken = torch.ones(len(windows), slots)[:, begun]
        best = logits.argmax(-1)
        for j, guessed in enumerate(head.passes(features[:, :slots], windows[:, 1:], EVALUATED)):
            wanted = logits[:, 1 + j : 1 + j + slots].softmax(-1)
            same = guessed.argmax(-1) == best[:, 1 + j : 1 + j + slots]
            overlap[j] += torch.minimum(wanted, guessed.softmax(-1)).sum(-1)[:, begun].mean() * len(windows)
            agreed[j] += same[:, begun].float().mean() * len(windows)
            unbroken = unbroken * same[:, begun]
            chain[j] += unbroken.mean() * len(windows)
    overlap, agreed, chain = overlap / len(texts), agreed / len(texts), chain / len(texts)
    return {
        "overlap": [round(float(x), 4) for x in overlap],
        "agreement": [round(float(x), 4) for x in agreed],
        "tokens_per_round_t1": round(1 + float(overlap.cumprod(0).sum()), 4),
        "tokens_per_round_t0": round(1 + float(chain.sum()), 4),
    }


class Optimisers:
    """Muon for the layer's matrices, AdamW for the head's rows and the norms."""

    def __init__(self, head: Head) -> None:
        rows = head.lm_head.weight
        matrices = [p for p in head.parameters() if p.ndim == 2 and p is not rows]
        self.head = head
        self.all = (
            Muon(matrices, weight_decay=0.01),
            torch.optim.AdamW([rows, *(p for p in head.parameters() if p.ndim == 1)], betas=(0.9, 0.95)),
        )

    def update(self, loss: Tensor, factor: float) -> None:
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.head.parameters(), 0.5)
        for optimiser, rate in zip(self.all, (0.02, 1.5e-3), strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
            optimiser.step()
            optimiser.zero_grad()


def train(args: argparse.Namespace, head: Head, target: Any, corpus: Tensor, texts: Tensor, held_out: Tensor) -> None:
    """From the last checkpoint to the last step; the best state so far is in the checkpoint, too."""
    checkpoint = args.cache / "checkpoint.pt"
    optimisers = Optimisers(head)
    state: dict[str, Any] = {"step": 0, "best": 0.0}
    if checkpoint.exists():
        state = torch.load(checkpoint)
        head.load_state_dict(state["head"])
        for optimiser, saved in zip(optimisers.all, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
    rows = args.batch_tokens // WINDOW
    started, first = time.monotonic(), state["step"]
    for step in range(first, args.steps):
        generator = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
        own = texts[torch.randint(len(texts), (rows,), generator=generator)]
        if step % 2 == 0:  # people's text keeps the head from knowing only what the target repeats
            own = batch_of(corpus, step, args.seed, own.shape[1] - 1, rows * (own.shape[1] - 1))
        done = step / args.steps
        loss = loss_of(head, target, own, args.passes, by_overlap=min(0.9, max(0.0, (done - 0.4) * 3)))
        optimisers.update(loss, schedule(step, 0, args.steps))
        if (step + 1) % args.every == 0 or step + 1 == args.steps:
            figures = evaluate(head, target, held_out)
            score = (figures["tokens_per_round_t0"] + figures["tokens_per_round_t1"]) / 2
            state["step"] = step + 1
            state["head"] = head.state_dict()
            state["optimisers"] = [optimiser.state_dict() for optimiser in optimisers.all]
            if score > state["best"]:
                state |= {"best": score, "best_step": step + 1}
                state["best_head"] = {name: tensor.clone() for name, tensor in head.state_dict().items()}
            torch.save(state, checkpoint.with_suffix(".part"))
            os.replace(checkpoint.with_suffix(".part"), checkpoint)
            pace = (time.monotonic() - started) / (step + 1 - first)
            print(f"step {step + 1} loss {loss.item():.3f} {pace:.2f} s/step {json.dumps(figures)}", flush=True)


# ----------------------------------------------------------------------------------------- export
def config_of(head: Head, target: str) -> dict[str, Any]:
    """As the speculators library writes it."""
    layer = head.config.to_dict()
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": head.lm_head.out_features,
        "dtype": "bfloat16",
        "eagle_aux_hidden_state_layer_ids": list(TAPS),
        "norm_before_residual": False,
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 4}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": target},
        },
        "transformer_layer_config": {name: layer[name] for name in sorted(layer) if not name.startswith("_")},
    }


CARD = """---
license: mit
language: code
---
# specdec demo head

An EAGLE-3 head for specdec's demo target, in the layout of the speculators library: {parameters:.2f} M parameters in
bfloat16; the embeddings are the target's. It reads the outputs of layers {taps} and drafts for that target alone.

- Data: {texts:,} texts of {length} tokens that the target wrote at temperatures 0, 0.8 and 1 behind beginnings of lines
  of the Python standard library, and that library itself, in turn.
- Training: `python benchmarks/train_demo_head.py --steps {steps} --texts {texts} --passes {passes} --batch-tokens
  {batch_tokens} --seed {seed}`, the best of its states (after {best_step:,} updates).
- On {held:,} held-out texts of the target, a quarter of them greedy, by that command: tokens a round with K {k}
  {t1:.2f} where both sample at temperature 1 (acceptance by position {overlap}), {t0:.2f} where both take the likeliest
  ({agreement}).
"""


def export(
    args: argparse.Namespace, head: Head, target: Any, state: dict[str, Any], texts: Tensor, held_out: Tensor
) -> None:
    """The best state as a folder, with the figures of the weights that ship."""
    head.load_state_dict(state["best_head"])
    head.to(torch.bfloat16).float()
    figures = evaluate(head, target, held_out)
    args.out.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in head.tensors().items()}
    save_file(tensors, args.out / "model.safetensors", metadata={"format": "pt"})
    (args.out / "model.safetensors").chmod(0o644)  # safetensors writes it for its owner alone
    config = json.dumps(config_of(head, "demo:target"), indent=2, sort_keys=True)
    (args.out / "config.json").write_text(config + "\n", encoding="utf-8")
    card = CARD.format(
        parameters=sum(tensor.numel() for tensor in tensors.values()) / 1e6, taps=" ".join(map(str, TAPS)),
        texts=len(texts), length=texts.shape[1], steps=args.steps, passes=args.passes, batch_tokens=args.batch_tokens,
        seed=args.seed, best_step=state["best_step"], held=len(held_out), k=EVALUATED,
        t1=figures["tokens_per_round_t1"], t0=figures["tokens_per_round_t0"],
        overlap=" ".join(f"{x:.2f}" for x in figures["overlap"]),
        agreement=" ".join(f"{x:.2f}" for x in figures["agreement"]),
    )  # fmt: skip
    (args.out / "README.md").write_text(card, encoding="utf-8")
    print(json.dumps(figures, indent=2))


def new_head(target: Any) -> Head:
    """A head for a target, before it has learnt anything."""
    own = target.config
    config = LlamaConfig(
        vocab_size=own.vocab_size, hidden_size=own.hidden_size, intermediate_size=INTERMEDIATE, num_hidden_layers=1,
        num_attention_heads=own.num_attention_heads, num_key_value_heads=own.num_attention_heads,
        head_dim=own.head_dim, max_position_embeddings=own.max_position_embeddings, rms_norm_eps=own.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0}, tie_word_embeddings=False,
        bos_token_id=own.bos_token_id, eos_token_id=own.eos_token_id,
    )  # fmt: skip
    embedding = target.get_input_embeddings().weight.detach()
    return Head(config, embedding, target.get_output_embeddings().weight.detach(), target.model.norm.weight.detach())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--passes", type=int, default=4, help="of training-time test")
    parser.add_argument("--batch-tokens", type=int, default=1536)
    parser.add_argument("--texts", type=int, default=640, help="that the target writes")
    parser.add_argument("--held-out", type=int, default=256, help="further ones, to choose the best state by")
    parser.add_argument("--every", type=int, default=75, help="updates between two evaluations")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "demo-head")
    parser.add_argument("--out", type=Path, default=HEAD)
    parser.add_argument("--export-only", action="store_true", help="write the folder from the best state so far")
    args = parser.parse_args()
    for name in ("train", "held-out"):
        (args.cache / name).mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    target: Any = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval().requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    if not (args.cache / "ids.pt").exists():
        corpus, others = (tokens_of(texts, tokenizer) for texts in read_corpus())
        torch.save({"corpus": corpus, "others": others}, args.cache / "ids.pt")
    ids = torch.load(args.cache / "ids.pt")
    held_out = write_texts(target, tokenizer, ids["others"], args.held_out, args.cache / "held-out", args.seed + 1)
    texts = write_texts(target, tokenizer, ids["corpus"], args.texts, args.cache / "train", args.seed)
    print(f"{len(texts):,} texts of the target, {len(held_out):,} held out", flush=True)
    head = new_head(target)
    if not args.export_only:
        train(args, head, target, ids["corpus"], texts, held_out)
    export(args, head, target, torch.load(args.cache / "checkpoint.pt"), texts, held_out)


if __name__ == "__main__":
    main()
