"""Does the pair fit here, and what does it promise: arithmetic on sizes, before anything is loaded.

Decoding one token streams every weight once, so on most devices a step costs what its bytes cost, and the expected c is
the quotient of the bytes. A mixture of experts reads more for several tokens than for one, which the expected v counts.
That is a prediction; `--probe` measures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate.utils import get_max_memory

from specdec_cli.roofline import Experts
from specdec_cli.runtime.checkpoints.inspection import effective_context
from specdec_cli.runtime.checkpoints.plan import HEADROOM, Plan, name_of
from specdec_cli.runtime.checkpoints.sizes import Sizes
from specdec_cli.runtime.devices import free_memory
from specdec_cli.runtime.pairs.checks import Check
from specdec_cli.runtime.pairs.side import Side
from specdec_cli.theory import best_num_draft_tokens, break_even_alpha, speedup

DEFAULT_CONTEXT = 4096
HOST = torch.device("cpu")
ALPHAS = (0.6, 0.7, 0.8, 0.9)
TYPICAL_ALPHA = 0.8
MAX_K = 16
Free = Mapping[torch.device, int]
# Below this at alpha .8, the gain is within what texts and machines differ by.
WORTH_TRYING = 1.1


@dataclass(frozen=True)
class Need:
    """What one device has to hold, and has.

    Attributes:
        device: its name.
        needed_bytes: weights with some headroom for what is computed beside them, and caches at the context.
        free_bytes: as torch or the system tells it.
    """

    device: str
    needed_bytes: int
    free_bytes: int

    @property
    def fits(self) -> bool:
        """Whether it does."""
        return self.needed_bytes <= self.free_bytes


def default_context(sides: Sequence[Side]) -> int:
    """What memory is counted for where the user did not say: a long chat, or all the positions there are."""
    return min(DEFAULT_CONTEXT, effective_context([side.inspection for side in sides]))


def needs(plans: Sequence[Plan], context: int, free: Free) -> list[Need]:
    """Each device's need for these models at a context.

    Args:
        free: bytes that each of the devices has.
    """
    found = []
    for device in dict.fromkeys(plan.device for plan in plans):
        here = [plan for plan in plans if plan.device == device]
        weights = sum(plan.loaded.total for plan in here)
        caches = sum(plan.kv_bytes(context) or 0 for plan in here)
        found.append(Need(str(device), round(weights * HEADROOM) + caches, free[device]))
    return found


def largest_context(plans: Sequence[Plan], free: Free) -> int:
    """The longest context at which all fits; 0 where the weights alone do not."""
    low, high = 0, effective_context([plan.inspection for plan in plans])
    while low < high:
        middle = (low + high + 1) // 2
        if _fit(plans, middle, free):
            low = middle
        else:
            high = middle - 1
    return low


def _fit(plans: Sequence[Plan], context: int, free: Free) -> bool:
    return all(need.fits for need in needs(plans, context, free))


def memory(sides: Sequence[Side], context: int, head_bytes: int = 0) -> tuple[Check, dict[str, Any] | None]:
    """The check and its record; None without sizes.

    Args:
        sides: the target and, where there is one, its draft.
        context: tokens in the caches.
        head_bytes: of a trained head beside the target.
    """
    plans = [side.plan for side in sides if side.plan is not None]
    if len(plans) < len(sides):
        return Check("memory", "ok", "nothing to count: see architecture"), None
    target, *drafts = plans
    free = {device: free_memory(device) for device in (*(plan.device for plan in plans), HOST)}
    free[target.device] -= round(head_bytes * HEADROOM)
    found = needs(plans, context, free)
    fits = all(need.fits for need in found)
    longest = largest_context(plans, free)
    record = {
        "context": context,
        "fits": fits,
        "largest_context": longest,
        "devices": [
            {"device": n.device, "needed_bytes": n.needed_bytes, "free_bytes": n.free_bytes, "fits": n.fits}
            for n in found
        ],
        "target": _sizes(target, context),
        "draft": _sizes(drafts[0], context) if drafts else None,
    }
    parts = [f"{plan.role} {_weights_and_cache(plan, context)}" for plan in plans]
    if head_bytes:
        parts.append(f"head {_gigabytes(head_bytes)}")
    shares = ", ".join(f"{_gigabytes(n.needed_bytes)} of {_gigabytes(n.free_bytes)} free on {n.device}" for n in found)
    detail = f"{'; '.join(parts)}; with headroom {shares}, at {context:,} tokens"
    if fits:
        return Check("memory", "ok", detail), record
    if longest > 0:
        return Check("memory", "warn", f"{detail}: too much", f"stay within --context {longest}, which fits"), record
    if spread := _spread(target, context, free):
        remedy = "let accelerate spread the target (it will), which is slower; or choose a larger device"
        return Check("memory", "warn", f"{detail}: too much for one device; {spread}", remedy), record
    return Check("memory", "fail", f"{detail}: too much", _what_fits(plans, context, free)), record


def _spread(target: Plan, context: int, free: Free) -> str:
    """A target too large for its GPU is spread by accelerate, if all devices together can hold it."""
    if target.device.type != "cuda" or _fit([target], context, free):
        return ""
    everywhere = sum(get_max_memory().values())
    if needs([target], context, free)[0].needed_bytes > everywhere:
        return ""
    return f"all devices and the host have {_gigabytes(everywhere)} together"


def _what_fits(plans: Sequence[Plan], context: int, free: Free) -> str:
    """Changes that would make it fit, by the same arithmetic."""
    options = []
    target, *drafts = plans
    if _fit([plan.in_16_bits() for plan in plans], context, free):
        options.append("--dtype bfloat16 fits")
    if any(d.device != HOST for d in drafts) and _fit(
        [target, *(replace(d, device=HOST) for d in drafts)], context, free
    ):
        options.append("--draft-device cpu fits")
    if drafts and _fit([target], context, free):
        options.append("a smaller --draft may fit: the target does")
    return "; ".join(options) or "choose a smaller --target or a larger --device"


def _sizes(plan: Plan, context: int) -> dict[str, Any]:
    found = plan.inspection
    return {
        "device": str(plan.device),
        "dtype": name_of(plan.dtype),
        "dtype_reason": plan.reason,
        "parameters": found.sizes.parameters,
        "weights_bytes": plan.loaded.total,
        "stored_bytes": found.stored.bytes,
        "stored_bytes_from": found.stored.source,
        "kv_bytes": plan.kv_bytes(context),
        "kv_bytes_per_token": plan.kv_bytes(1),
    }


def _weights_and_cache(plan: Plan, context: int) -> str:
    kv = plan.kv_bytes(context)
    cache = "a cache of unknown size" if kv is None else f"{_gigabytes(kv)} of cache"
    bits = " and quantised layers" if plan.has_rounded_layers else ""
    return f"{_gigabytes(plan.loaded.total)} in {name_of(plan.dtype)}{bits} + {cache}"


@dataclass(frozen=True)
class Reads:
    """What a step of a draft reads.

    Attributes:
        parameters: of the draft.
        step_bytes: for one drafted token.
        caveat: why that is not quite so, for the user; empty where it is.
    """

    parameters: int
    step_bytes: float
    caveat: str = ""


def cost(target: Side, draft: Side) -> tuple[Check, dict[str, Any] | None]:
    """Expected c by bytes, and what the forms make of it: the closed one; the extended one for a mixture of experts."""
    if draft.plan is None:
        return Check("cost", "ok", "nothing to count: see architecture"), None
    sizes = draft.inspection.sizes
    return cost_of(target, Reads(sizes.parameters, draft.plan.loaded.step, sizes.caveat))


def cost_of(target: Side, draft: Reads) -> tuple[Check, dict[str, Any] | None]:
    """The same for whatever drafts."""
    if target.plan is None:
        return Check("cost", "ok", "nothing to count: see architecture"), None
    own = target.inspection.sizes
    sizes = {"target": Reads(own.parameters, target.plan.loaded.step, own.caveat), "draft": draft}
    ours, theirs = (reads.step_bytes for reads in sizes.values())
    c = theirs / ours
    experts = _experts(own)
    verify = _one_step if experts is None else lambda k: experts.pass_cost(k + 1)
    best = [_best(alpha, c, verify) for alpha in ALPHAS]
    record: dict[str, Any] = {
        "c_by_bytes": c,
        "break_even_alpha": break_even_alpha(1, c),
        "best": best,
        "experts": experts and _woken(experts, c),
        **{
            role: {"parameters": reads.parameters, "step_bytes": round(reads.step_bytes), "caveat": reads.caveat}
            for role, reads in sizes.items()
        },
    }
    detail = (
        f"{_count(sizes['target'].parameters)} and {_count(sizes['draft'].parameters)} parameters; a step reads "
        f"{_gigabytes(ours)} and {_gigabytes(theirs)}, so c is about {c:.2f}"
    )
    detail = "; ".join([detail, *(f"{role}: {one.caveat}" for role, one in sizes.items() if one.caveat)])
    pays = break_even_alpha(1, c)
    if pays is None:
        return Check("cost", "warn", f"{detail}: no alpha can pay for that", "choose a smaller --draft"), record
    promise = ", ".join(f"{b['speedup']:.2f}x at alpha {b['alpha']:g} (K {b['k']})" for b in best)
    if experts is None:
        detail = f"{detail}; pays above alpha {pays:.2f}; closed form: {promise}"
    else:
        detail = f"{detail}; {_told(experts, record['experts'])}; at best {promise}"
    if next(b["speedup"] for b in best if b["alpha"] == TYPICAL_ALPHA) < WORTH_TRYING:
        remedy = "choose a smaller --draft" if experts is None else "measure with --probe, or choose a dense --target"
        return Check("cost", "warn", detail, remedy), record
    return Check("cost", "ok", detail), record


def _one_step(k: int) -> float:
    """v where a pass over several tokens reads what a step reads."""
    return 1.0


def _best(alpha: float, c: float, verify: Callable[[int], float]) -> dict[str, Any]:
    k = best_num_draft_tokens(alpha, c, range(1, MAX_K + 1), verify)
    return {"alpha": alpha, "k": k, "speedup": speedup(alpha, k, c, verify(k))}


def _experts(sizes: Sizes) -> Experts | None:
    """How the target's passes read its experts; None where it has none, or too little is known of them."""
    found = sizes.experts
    if found is None:
        return None
    return Experts(found.number, found.active, 1 - found.step_parameters / sizes.step_parameters)


def _woken(experts: Experts, c: float) -> dict[str, Any]:
    """The experts' record: what passes of some widths read, and what that leaves of the speedup at a typical alpha."""

    def at(k: int) -> dict[str, Any]:
        v, most = experts.pass_cost(k + 1), experts.most_pass_cost(k + 1)
        speeds = {"speedup": speedup(TYPICAL_ALPHA, k, c, v), "least_speedup": speedup(TYPICAL_ALPHA, k, c, most)}
        return {"k": k, "woken": experts.woken(k + 1), "v": v, "most_v": most, **speeds}

    shape = {"number": experts.number, "active": experts.active, "dense_share": experts.dense_share}
    return {**shape, "alpha": TYPICAL_ALPHA, "passes": [at(k) for k in (1, MAX_K)]}


def _told(experts: Experts, record: Mapping[str, Any]) -> str:
    """What the experts mean for v, in a clause."""
    speeds = " and ".join(
        f"{one['least_speedup']:.2f}x to {one['speedup']:.2f}x at K {one['k']} (v {one['v']:.2f})"
        for one in record["passes"]
    )
    return (
        f"a token wakes {experts.active} of {experts.number} experts, so that a pass over K + 1 tokens reads more than "
        f"a step: at alpha {record['alpha']:g} expect {speeds}, from tokens that share no expert to uniform routing"
    )


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.3g} B" if parameters >= 1e9 else f"{parameters / 1e6:.3g} M"
