"""Write the table of capabilities in docs/own-sampler.md; the build makes a page of what each of them costs.

python tools/pages.py capability_costs            # write
python tools/pages.py capability_costs --check    # exit 1 if the page is stale, for CI
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from fairdraw._core.contracts import CONTRACTS
from fairdraw._run.capability_words import glossary
from fairdraw._run.loading import all_checks
from fairdraw.protocols import Capabilities, Capability

DOCS = Path(__file__).resolve().parents[2] / "docs"
MANUAL = DOCS / "own-sampler.md"

WHY = {
    Capability.EXPLICIT_NOISE: "stratified noise is explicit; other checks test the same distributions by counting",
    Capability.REFERENCE_RACE: "stratified exponentials need the exponential race",
    Capability.SEEDED_NOISE: "they test the seeds of requests; other checks use explicit noise",
    Capability.REQUEST_SEEDS: "they use requests with per-request seeds",
    Capability.DENSE_DRAFTS: "they test draft probabilities; other checks test one-hot drafts",
    Capability.ONE_HOT_DRAFTS: "they test one-hot drafts; other checks test dense drafts",
    Capability.RAGGED: "it tests requests of different lengths side by side",
    Capability.TOKEN_VERIFICATION: "other verifiers accept other drafts; what they emit is still tested",
    Capability.SYNTHETIC_RATES: "they test acceptance by given rates",
    Capability.LARGE_VOCAB: "they draw from production vocabularies",
    Capability.DRAFTER: "they judge a drafter and its verifier together",
    Capability.TRIM: "it judges the rule that trims drafts",
    Capability.LONG_DRAFTS: "they test requests of more than 8 drafts",
    Capability.TOP_K: "it tests this filter",
    Capability.TOP_P: "it tests this filter",
    Capability.MIN_P: "it tests this filter",
    Capability.XTC: "it is the only filter that tosses a coin",
    Capability.GRAMMAR_DRAFTS: "they emit tokens under masks that were forked over drafts",
    Capability.DRAWN_TOKENS: "they compare drawn tokens with the log-probabilities that came with them",
    Capability.TOP_LOGPROBS: "they judge tokens by the log-probabilities that come with them",
    Capability.TOKEN_IDS: "they name tokens by their ids",
    Capability.N_CHOICES: "they compare the choices of a request",
    Capability.PENALTIES: "they test penalties",
}
"""Why the distribution checks that are skipped without a capability need it."""

HEAD = """# What a missing capability costs

Made from the checks: what is skipped if a sampler does not support one capability
and supports all others. A check needs only what it tests. Anything else that a sampler does not support is left out of
the batches instead: filters of other requests, draft probabilities, greedy requests, different numbers of drafts, a
large vocabulary (1024 tokens replace 32768). So distributions are tested whichever single capability is missing;
only a function of log-probabilities that is given its tokens (no `drawn-tokens`), and filters without `xtc`, have none.

A sampler that supports neither `seeded-noise` nor `explicit-noise` is given seeds, which it may ignore. Its
distributions are tested, but a failure cannot be repeated exactly. Capabilities that are not listed under a contract
cost no check there.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the table of capabilities in docs/own-sampler.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; complain if it is stale")
    options = parser.parse_args()
    before = MANUAL.read_text(encoding="utf-8")
    text = with_table(before)
    if options.check:
        print("stale. Run: python tools/pages.py capability_costs" if text != before else "the table is true")
        return int(text != before)
    MANUAL.write_text(text, encoding="utf-8")
    return 0


def with_table(manual: str) -> str:
    """The manual with the rows of every capability, as `fairdraw explain` describes them."""
    rows = "".join(f"{word.row()}\n" for word in glossary().values())
    table = r"(^\| word \|.*\n\|[-|]+\|\n)(?:\|.*\n)+"
    return with_counts(re.sub(table, lambda head: head[1] + rows, manual, flags=re.MULTILINE))


def with_counts(manual: str) -> str:
    """The manual with the numbers of checks that its own sampler runs without explicit noise, and with it.

    With it the sampler's recovered tokens are not the oracle's, as the page says: no `reference-race`.
    """
    checks, noise = all_checks(contract="rejection"), str(Capability.EXPLICIT_NOISE)
    declared = re.search(r"^unsupported = \{\n(.*?)^\}", manual, flags=re.MULTILINE | re.DOTALL)
    assert declared is not None
    without = dict(re.findall(r'^    "([\w-]+)": "(.*)",$', declared[1], flags=re.MULTILINE))
    given = {word: why for word, why in without.items() if word != noise} | {str(Capability.REFERENCE_RACE): "its own"}
    lacking = (Capabilities.of({"drafter": "none", "trim": "none"} | words) for words in (without, given))
    less, more = (sum(check.missing(one) is None for check in checks) for one in lacking)
    cost = len(glossary()[Capability.EXPLICIT_NOISE].skipped["rejection"])
    text = (
        f"It costs {cost} of the {len(checks)} checks of this contract; on this sampler, which lacks other things too, "
    )
    text += f"{less} run\nin place of {more}."
    manual = re.sub(r"It costs \d+ of the \d+ checks of .*\n.*?\d\.", text, manual)
    return re.sub(r"== \d+ - \d+$", f"== {more} - {less}", manual, flags=re.MULTILINE)


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(section(contract) for contract in CONTRACTS)])


def section(contract: str) -> str:
    """One contract: a row for every capability without which checks are skipped."""
    num_checks, distributions = len(all_checks(contract=contract)), distribution_checks(contract)
    counted = f"{len(distributions) or 'none'} of them test distributions"
    rows = [row(capability, contract) for capability in Capability if contract in glossary()[capability].skipped]
    return "\n".join(
        [
            f"## {contract.replace('_', ' ').capitalize()}",
            "",
            f"{num_checks} checks; {counted}.",
            "",
            "| without | skipped | of distributions | distributions tested | why these need it |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def row(capability: Capability, contract: str) -> str:
    """One capability: what it costs, and whether distributions are still tested."""
    skipped, distributions = glossary()[capability].skipped[contract], distribution_checks(contract)
    lost = [code for code in skipped if code in distributions]
    left = len(distributions) - len(lost)
    tested = f"yes, by {left}" if left else "no" if distributions else "-"
    cells = (f"`{capability}`", len(skipped), ", ".join(lost) or "none", tested, WHY[capability] if lost else "")
    return f"| {' | '.join(map(str, cells))} |"


def distribution_checks(contract: str) -> list[str]:
    """Codes of the distribution checks."""
    return [check.code for check in all_checks("statistical", contract)]
