"""What lacking one capability costs a sampler: docs/capability-costs.md, made from the checks themselves.

python tools/capability_costs.py            # write
python tools/capability_costs.py --check    # exit 1 if the page is stale, as CI asks
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fairdraw._core.contracts import CONTRACTS
from fairdraw._run.capability_words import glossary
from fairdraw._run.loading import all_checks
from fairdraw.protocols import Capability

PAGE = Path(__file__).resolve().parent.parent / "docs" / "capability-costs.md"

WHY = {
    Capability.EXPLICIT_NOISE: "stratified noise is handed in; the same distributions are judged by counting",
    Capability.REFERENCE_RACE: "stratified exponentials ask about the exponential race",
    Capability.SEEDED_NOISE: "seeds of requests are judged; other checks hand in explicit noise",
    Capability.REQUEST_SEEDS: "they draw requests with seeds of their own",
    Capability.DENSE_DRAFTS: "they judge draft probabilities; one-hot drafts have checks of their own",
    Capability.ONE_HOT_DRAFTS: "they judge one-hot drafts; dense drafts have checks of their own",
    Capability.RAGGED: "it judges requests of different lengths side by side",
    Capability.TOKEN_VERIFICATION: "other verifiers accept other drafts; what they emit is judged",
    Capability.TOP_K: "it judges this filter",
    Capability.TOP_P: "it judges this filter",
    Capability.MIN_P: "it judges this filter",
    Capability.DRAFT_DISTRIBUTION: "they compare drafts with the distribution that came with them",
}
"""Why the checks of distributions that are skipped without a capability cannot do without it."""

HEAD = """# What a missing capability costs

Made from the checks themselves by `tools/capability_costs.py`: what is skipped if a sampler does not support one capability and
nothing else. A check needs what it judges. What its batches can go without is left out of them instead: filters of
other requests, draft probabilities, greedy requests, different numbers of drafts, a large vocabulary (1024 tokens take
the place of 32768). So no capability that a sampler may lack leaves its distributions unjudged.

A sampler that takes neither `seeded-noise` nor `explicit-noise` is given seeds, which it may ignore: what it draws is
judged, but cannot be drawn again. Capabilities that are not listed under a contract cost no check there.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/capability-costs.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; complain if the page is stale")
    options = parser.parse_args()
    text = page()
    if options.check:
        is_stale = not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text
        print("stale. Run: python tools/capability_costs.py" if is_stale else "the page is true")
        return int(is_stale)
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote docs/{PAGE.name}")
    return 0


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(section(contract) for contract in CONTRACTS)])


def section(contract: str) -> str:
    """One contract: a row for every capability without which checks are skipped."""
    num_checks, distributions = len(all_checks(contract=contract)), distribution_checks(contract)
    counted = (
        f"{len(distributions)} of them judge distributions" if distributions else "none of them judges distributions"
    )
    rows = [row(capability, contract) for capability in Capability if contract in glossary()[capability].skipped]
    return "\n".join(
        [
            f"## {contract.replace('_', ' ').capitalize()}",
            "",
            f"{num_checks} checks; {counted}.",
            "",
            "| without | skipped | of distributions | distributions judged | why these need it |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def row(capability: Capability, contract: str) -> str:
    """One capability: what it costs, and whether distributions are still judged."""
    skipped, distributions = glossary()[capability].skipped[contract], distribution_checks(contract)
    lost = [code for code in skipped if code in distributions]
    left = len(distributions) - len(lost)
    judged = f"yes, by {left}" if left else "no" if distributions else "-"
    cells = (f"`{capability}`", len(skipped), ", ".join(lost) or "none", judged, WHY[capability] if lost else "")
    return f"| {' | '.join(map(str, cells))} |"


def distribution_checks(contract: str) -> list[str]:
    """Codes of the checks that judge distributions."""
    return [check.code for check in all_checks("statistical", contract)]


if __name__ == "__main__":
    sys.exit(main())
