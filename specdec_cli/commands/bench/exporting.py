"""--export: the best point in the words of another tool, which needs to know the models as well as the measurement."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from specdec_cli.commands.bench.request import BenchRequest
from specdec_cli.drafters.spec import DraftSpec
from specdec_cli.reports.recommend import PROMPT_LOOKUP, Recommendation, export
from specdec_cli.runtime.checkpoints.locate import EMBEDDED
from specdec_cli.runtime.pairs.pair import Pair


def check_export(request: BenchRequest, pairs: Sequence[Pair]) -> None:
    """Whether the tool would take every pair, any of which may turn out the best; told before anything is measured.

    Raises:
        IncompatiblePairError: it would refuse one.
    """
    if request.export is None:
        return
    for (spec, _), pair in zip(request.drafts, pairs, strict=True):
        export(_recommendation(request, spec, pair, k=1, temperature=0.0), request.export)


def tell_export(request: BenchRequest, pairs: Sequence[Pair], document: dict[str, Any]) -> None:
    """Write it to stdout; nothing without --export, and where nothing is recommended."""
    if request.export is not None and document["recommendation"]:
        sys.stdout.write(exported(request, pairs, document))
        sys.stdout.flush()


def exported(request: BenchRequest, pairs: Sequence[Pair], document: dict[str, Any]) -> str:
    """The tool's configuration for the best of the recommended points."""
    best = max(document["recommendation"], key=lambda point: point["speedup"])
    spec, pair = next((s, p) for (s, _), p in zip(request.drafts, pairs, strict=True) if s.name == best["draft"])
    return export(_recommendation(request, spec, pair, best["k"], best["temperature"]), request.export or "")


def _recommendation(request: BenchRequest, spec: DraftSpec, pair: Pair, k: int, temperature: float) -> Recommendation:
    facts = pair.facts_for_other_tools()
    if spec.prompt_lookup is not None:
        facts |= dict(zip(("lookup_max", "lookup_min"), spec.prompt_lookup, strict=True))
    target, draft = (
        str(EMBEDDED.get(source, source)) for source in (request.target.source, spec.model or PROMPT_LOOKUP)
    )
    return Recommendation(target=target, draft=draft, k=k, temperature=temperature, **facts)
