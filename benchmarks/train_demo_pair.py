"""Train the demo pair that ships inside specdec: a deep, narrow target and a one-layer draft.

The corpus is the Python standard library of the interpreter that runs this script, so no download is
needed. Both models are ordinary Llama checkpoints with one byte-level BPE tokenizer.

Three ideas make two CPU cores enough:

* the draft is distilled *while* the target learns (its teacher's logits are there anyway), and gets a
  last stretch of its own when the target stands still. First the loss is the cross-entropy against the
  target's distribution; in the last stretch it is the total variation distance, which is exactly the
  rejection probability: overlap = sum min(p, q) = 1 - TV(p, q) (DistillSpec, arXiv 2310.08461);
* the target first trains with a third of its layers, then every layer is followed by two new ones that start
  as the identity (their output projections are zero), as in Net2Net (arXiv 1511.05641);
* matrices are trained by Muon (orthogonalised momentum, https://kellerjordan.github.io/posts/muon),
  embeddings and norms by AdamW. torch.optim.Muon orthogonalises in bfloat16 one matrix at a time, which
  a CPU without bfloat16 units runs a hundred times slower; here it is float32 and batched by shape.

    python benchmarks/train_demo_pair.py                  # continues from the last checkpoint
    python benchmarks/train_demo_pair.py --compile --bf16 # the same, on a CPU with bfloat16 units
    python benchmarks/train_demo_pair.py --export-only    # write the folders from that checkpoint
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.progress import Progress, TextColumn, TimeRemainingColumn
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[1]
END = "<|endoftext|>"
VOCAB_SIZE = 4096
GROWTH = 3
SHORT_CONTEXT, LONG_CONTEXT = 256, 1024
# Generated tables and help texts teach nothing about writing Python.
LEFT_OUT = ("site-packages", "encodings", "pydoc_data", "__pycache__")

# A line break with the indentation after it is one piece, so that BPE learns "\n        " as one token.
CODE_PIECES = r"[\r\n]+[ \t]*|[ ]?\p{L}+|[ ]?_+\p{L}*|\p{N}|[ ]?[^\s\p{L}\p{N}_]+|[ \t]+"


# ------------------------------------------------------------------------------------------- data
def read_corpus() -> tuple[list[str], list[str]]:
    """Standard library sources, split by a hash of each file's path: (training, held out)."""
    library = Path(sysconfig.get_paths()["stdlib"])
    train: list[str] = []
    held_out: list[str] = []
    for path in sorted(library.rglob("*.py")):
        relative = path.relative_to(library)
        if any(part in LEFT_OUT for part in relative.parts):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a few test files are in other encodings on purpose
            continue
        is_held_out = hashlib.md5(str(relative).encode()).digest()[0] < 5  # about 2 %
        (held_out if is_held_out else train).append(text)
    return train, held_out


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(CODE_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        model_max_length=LONG_CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def prepare(cache: Path) -> tuple[PreTrainedTokenizerFast, Tensor, Tensor]:
    """Tokenizer, training ids and held-out ids (1-D, files separated by the end token), cached."""
    if not (cache / "ids.pt").exists():
        train, held_out = read_corpus()
        tokenizer = train_tokenizer(train)
        tokenizer.save_pretrained(cache / "tokenizer")

        def encode(texts: list[str]) -> Tensor:
            encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
            return torch.tensor([i for ids in encoded for i in [tokenizer.eos_token_id, *ids]])

        torch.save({"train": encode(train), "held_out": encode(held_out)}, cache / "ids.pt")
    ids = torch.load(cache / "ids.pt")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(cache / "tokenizer")
    return tokenizer, ids["train"], ids["held_out"]


# ----------------------------------------------------------------------------------------- models
def build(layers: int, hidden: int, intermediate: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 32,
        max_position_embeddings=LONG_CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config)


def grown(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """The same function with GROWTH times the layers: each is followed by identity copies of itself."""
    config = model.config
    deeper = build(GROWTH * config.num_hidden_layers, config.hidden_size, config.intermediate_size)
    state = {}
    for name, value in model.state_dict().items():
        if not name.startswith("model.layers."):
            state[name] = value
            continue
        index, rest = name.removeprefix("model.layers.").split(".", 1)
        adds_nothing = rest in ("self_attn.o_proj.weight", "mlp.down_proj.weight")
        for copy in range(GROWTH):
            place = f"model.layers.{GROWTH * int(index) + copy}.{rest}"
            state[place] = value * 0 if copy and adds_nothing else value
    deeper.load_state_dict(state)
    return deeper


def depth_of(state: dict[str, Tensor]) -> int:
    """Number of layers in a state dict."""
    return 1 + max(int(name.split(".")[2]) for name in state if name.startswith("model.layers."))


# -------------------------------------------------------------------------------------- optimiser
class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised by five Newton-Schulz steps, for hidden matrices."""

    def __init__(self, params: list[nn.Parameter], momentum: float = 0.95, weight_decay: float = 0.02):
        super().__init__(params, {"lr": 0.0, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for p in group["params"]:
                by_shape.setdefault(p.shape, []).append(p)
            for shape, params in by_shape.items():
                updates = []
                for p in params:
                    assert p.grad is not None
                    buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    buffer.lerp_(p.grad, 1 - group["momentum"])
                    updates.append(p.grad.lerp(buffer, group["momentum"]))  # Nesterov
                directions = orthogonalise(torch.stack(updates))
                scale = group["lr"] * max(1, shape[0] / shape[1]) ** 0.5
                for p, direction in zip(params, directions, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-scale)


def orthogonalise(batch: Tensor) -> Tensor:
    """Nearest semi-orthogonal matrices of a [n, rows, columns] batch, by a quintic iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = batch.shape[-2] > batch.shape[-1]
    x = batch.mT if tall else batch
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Trainer:
    """One model with its two optimisers; learning rates are set by a factor from the schedule."""

    def __init__(self, model: LlamaForCausalLM, matrix_lr: float, other_lr: float):
        self.model = model
        matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
        known = {id(p) for p in matrices}
        others = [p for p in model.parameters() if id(p) not in known]
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0)
        self.rates = (matrix_lr, other_lr)

    def update(self, loss: Tensor, factor: float) -> None:
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser, rate in zip((self.muon, self.adam), self.rates, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
            optimiser.step()
            optimiser.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "muon": self.muon.state_dict(),
            "adam": self.adam.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])


# --------------------------------------------------------------------------------------- training
def schedule(step: int, first: int, last: int) -> float:
    """Linear warm-up over 60 steps, then linear to nearly zero at `last`."""
    done = (step - first) / max(1, last - first)
    return min(1.0, (step - first + 1) / 60) * max(0.02, 1.0 - done)


def batch_of(ids: Tensor, step: int, seed: int, context: int, tokens: int) -> Tensor:
    """Random windows; seeded by the step, so a resumed run sees the batches it would have seen."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(0, len(ids) - context - 1, (tokens // context,), generator=generator)
    return ids[starts[:, None] + torch.arange(context + 1)]


def distillation_loss(draft_logits: Tensor, target_logits: Tensor, by_overlap: bool) -> Tensor:
    target_probs = target_logits.detach().softmax(-1)
    if by_overlap:
        return 1 - torch.minimum(target_probs, draft_logits.softmax(-1)).sum(-1).mean()
    return -(target_probs * draft_logits.log_softmax(-1)).sum(-1).mean()


def train(args: argparse.Namespace, ids: Tensor, checkpoint: Path) -> tuple[Trainer, Trainer]:
    torch.manual_seed(args.seed)
    total = args.steps + args.distil_steps
    step = 0
    saved = torch.load(checkpoint) if checkpoint.exists() else None
    if saved:
        step = saved["step"]
    layers = depth_of(saved["target"]["model"]) if saved else args.layers // GROWTH
    target = Trainer(build(layers, 128, 384), matrix_lr=0.02, other_lr=4e-3)
    draft = Trainer(build(1, 256, 768), matrix_lr=0.02, other_lr=4e-3)
    if saved:
        target.load_state_dict(saved["target"])
        draft.load_state_dict(saved["draft"])

    def prepared(model: LlamaForCausalLM) -> Callable[..., Any]:
        return torch.compile(model) if args.compile else model

    target_forward, draft_forward = prepared(target.model), prepared(draft.model)
    distance = torch.compile(distillation_loss) if args.compile else distillation_loss
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=args.bf16)  # matrices only; losses are float32
    columns = [*Progress.get_default_columns()[:-1], TimeRemainingColumn(), TextColumn("{task.fields[note]}")]
    with Progress(*columns) as progress:
        task = progress.add_task("training", total=total, completed=step, note="")
        last_saved = time.monotonic()
        while step < total:
            if step >= args.grow_at and target.model.config.num_hidden_layers < args.layers:
                target = Trainer(grown(target.model), *target.rates)
                target_forward = prepared(target.model)
            context = LONG_CONTEXT if 0.85 * args.steps < step else SHORT_CONTEXT
            windows = batch_of(ids, step, args.seed, context, args.batch_tokens)
            inputs, labels = windows[:, :-1], windows[:, 1:]
            alone = step >= args.steps  # the target has finished, only the draft still learns
            with torch.set_grad_enabled(not alone):
                with autocast:
                    target_logits = target_forward(input_ids=inputs, use_cache=False).logits
                target_logits = target_logits.float()
                target_loss = F.cross_entropy(target_logits.flatten(0, 1), labels.flatten())
            if not alone:
                target.update(target_loss, schedule(step, 0, args.steps))
            with autocast:
                draft_logits = draft_forward(input_ids=inputs, use_cache=False).logits
            draft_loss = distance(draft_logits.float(), target_logits, by_overlap=alone)
            factor = schedule(step, args.steps, total) * 0.5 if alone else schedule(step, 0, 2 * args.steps)
            draft.update(draft_loss, factor)
            step += 1
            progress.update(task, completed=step, note=f"target {target_loss.item():.3f} draft {draft_loss.item():.3f}")
            if step % 50 == 0:
                print(f"step {step} target {target_loss.item():.3f} draft {draft_loss.item():.3f}", flush=True)
            if time.monotonic() - last_saved > 120 or step in (args.steps, total):
                state = {"step": step, "target": target.state_dict(), "draft": draft.state_dict()}
                torch.save(state, checkpoint.with_suffix(".part"))
                os.replace(checkpoint.with_suffix(".part"), checkpoint)
                last_saved = time.monotonic()
    return target, draft


@torch.inference_mode()
def evaluate(target: LlamaForCausalLM, draft: LlamaForCausalLM, held_out: Tensor) -> dict[str, float]:
    """Means over the held-out text in windows of 256 tokens."""
    windows = held_out[: len(held_out) // 256 * 256].view(-1, 256)[:400]
    sums = torch.zeros(4, dtype=torch.float64)
    for chunk in windows.split(8):
        target_logits = target(input_ids=chunk, use_cache=False).logits[:, :-1]
        draft_logits = draft(input_ids=chunk, use_cache=False).logits[:, :-1]
        labels = chunk[:, 1:].flatten()
        overlap = torch.minimum(target_logits.softmax(-1), draft_logits.softmax(-1)).sum(-1)
        agree = (target_logits.argmax(-1) == draft_logits.argmax(-1)).float()
        sums += torch.tensor(
            [
                F.cross_entropy(target_logits.flatten(0, 1), labels).item() * len(chunk),
                F.cross_entropy(draft_logits.flatten(0, 1), labels).item() * len(chunk),
                overlap.mean().item() * len(chunk),
                agree.mean().item() * len(chunk),
            ]
        )
    names = ("target_loss", "draft_loss", "overlap", "argmax_agreement")
    return dict(zip(names, (round(float(s), 4) for s in sums / len(windows)), strict=True))


# ----------------------------------------------------------------------------------------- export
CARD = """---
license: mit
language: code
library_name: transformers
---
# specdec demo {role}

The {role} of specdec's embedded demo pair: a {layers}-layer, {hidden}-wide Llama-architecture model of Python
source, {parameters:.2f} M parameters, {context} tokens of context. It exists to show speculative decoding in
seconds on any machine, not to write your programs.

- Data: the source files of the Python {python} standard library found on the training machine (tests
  included; generated tables left out), {tokens:.1f} M tokens. The standard library is copyright the Python
  Software Foundation and licensed under the PSF License; passages may be reproduced by the model.
- Training: `python benchmarks/train_demo_pair.py{bf16} --steps {steps} --distil-steps {distil_steps} --seed {seed}`,
  {seen:.1f} M tokens seen by the target. {how}
- Held-out files (2 %, split by path), measured at the end of that command on the saved bfloat16 weights:
  loss of the target {target_loss:.3f}, of the draft {draft_loss:.3f} nats a token; overlap
  (mean of sum min(p, q)) {overlap:.3f}; argmax agreement {argmax_agreement:.3f}.
"""


def export(
    args: argparse.Namespace,
    models: dict[str, LlamaForCausalLM],
    tokenizer: PreTrainedTokenizerFast,
    ids: Tensor,
    held_out: Tensor,
    step: int,
) -> None:
    for model in models.values():  # the figures are those of the weights that ship
        model.to(torch.bfloat16).float()
    figures = evaluate(models["target"].eval(), models["draft"].eval(), held_out)
    how = {
        "target": f"It learnt with a third of its layers up to update {args.grow_at}.",
        "draft": "It was distilled from the target, first by cross-entropy, then by total variation.",
    }
    for role, model in models.items():
        folder = args.out / role
        folder.mkdir(parents=True, exist_ok=True)
        model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=0, pad_token_id=0)
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        config = model.config
        card = CARD.format(
            role=role, layers=config.num_hidden_layers, hidden=config.hidden_size, context=LONG_CONTEXT,
            parameters=sum(p.numel() for p in model.parameters()) / 1e6, python=platform.python_version(),
            tokens=len(ids) / 1e6, steps=args.steps, distil_steps=args.distil_steps, seed=args.seed,
            bf16=" --bf16" if args.bf16 else "",
            seen=min(step, args.steps) * args.batch_tokens / 1e6, how=how[role], **figures,
        )  # fmt: skip
        (folder / "README.md").write_text(card, encoding="utf-8")
    print(json.dumps({"step": step, **figures}, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=4000, help="updates of the target, the draft beside it")
    parser.add_argument("--distil-steps", type=int, default=400, help="further updates of the draft alone")
    parser.add_argument("--grow-at", type=int, default=3200, help="update at which the target gets all its layers")
    parser.add_argument("--batch-tokens", type=int, default=3072)
    parser.add_argument("--layers", type=int, default=30, help="of the target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "demo-pair")
    parser.add_argument("--out", type=Path, default=ROOT / "specdec_cli" / "demo")
    parser.add_argument("--compile", action="store_true", help="torch.compile: a third faster, needs a C++ compiler")
    parser.add_argument("--bf16", action="store_true", help="bfloat16 matrix products: for CPUs that have the units")
    parser.add_argument("--export-only", action="store_true", help="write the folders from the last checkpoint")
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    checkpoint = args.cache / "checkpoint.pt"
    tokenizer, ids, held_out = prepare(args.cache)
    print(f"{len(ids) / 1e6:.2f} M training tokens, {len(held_out) / 1e6:.2f} M held out", flush=True)
    if args.export_only:
        saved = torch.load(checkpoint)
        pair = {"target": build(depth_of(saved["target"]["model"]), 128, 384), "draft": build(1, 256, 768)}
        for role, model in pair.items():
            model.load_state_dict(saved[role]["model"])
        step = saved["step"]
    else:
        target, draft = train(args, ids, checkpoint)
        pair = {"target": target.model, "draft": draft.model}
        step = args.steps + args.distil_steps
    export(args, pair, tokenizer, ids, held_out, step)


if __name__ == "__main__":
    main()
