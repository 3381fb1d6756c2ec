"""Tables of capabilities and policies, and the page of what a missing capability costs; the docs build shows them."""

from __future__ import annotations

from records import table

from fairdraw._core.contracts import CONTRACTS
from fairdraw._run.capability_words import glossary
from fairdraw._run.loading import all_checks
from fairdraw.contracts import Capability

WHY = {
    Capability.EXPLICIT_NOISE: "stratified noise is explicit; other checks test the same distributions by counting",
    Capability.REFERENCE_RACE: "stratified exponentials need the exponential race",
    Capability.SEEDED_NOISE: "it looks at what the generator brings after the tokens",
    Capability.DENSE_DRAFTS: "they test draft probabilities; other checks test one-hot drafts",
    Capability.ONE_HOT_DRAFTS: "they test one-hot drafts; other checks test dense drafts",
    Capability.RAGGED: "they test requests of different lengths side by side",
    Capability.TOKEN_VERIFICATION: "other verifiers accept other drafts; what they emit is still tested",
    Capability.LARGE_VOCAB: "it draws from large vocabularies",
    Capability.DRAFTER: "they judge a drafter and its verifier together",
    Capability.TRIM: "it judges the rule that trims drafts",
    Capability.LONG_DRAFTS: "they test requests of more than 8 drafts",
    Capability.XTC: "it is the only filter that tosses a coin",
    Capability.GRAMMAR_DRAFTS: "they emit tokens under masks that were forked over drafts",
    Capability.DRAWN_TOKENS: "they compare drawn tokens with the log-probabilities that came with them",
    Capability.TOP_LOGPROBS: "they judge tokens by the log-probabilities that come with them",
    Capability.TOKEN_IDS: "they name tokens by their ids",
}
"""Why the distribution checks that are skipped without a capability need it."""


def words(contract: str | None = None) -> str:
    """Return a row for every capability, as `fairdraw explain` describes it; for those that cost `contract` checks."""
    rows = [one.row(contract) for one in glossary().values() if contract is None or contract in one.skipped]
    head = ["| word | what it means | declare it unsupported | checks it costs |", "|---|---|---|---|"]
    return "\n".join([*head, *rows])


def ways(contract: str) -> str:
    """Return a row for every way of the contract's policy; the first way of each choice is vLLM's."""
    kind = CONTRACTS[contract].policy
    assert kind
    rows = [
        [f"`{kind.__name__}({name}={way})`", line]
        for name, choice in kind.choices().items()
        for way, line in choice.ways.items()
    ]
    return "\n".join(table(("declaration", "what it says"), rows))


def page() -> str:
    """Return the sections of the page."""
    return "\n".join(section(contract) for contract in CONTRACTS).rstrip()


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
            *table(("without", "skipped", "of distributions", "distributions tested", "why these need it"), rows),
            "",
        ]
    )


def row(capability: Capability, contract: str) -> list[object]:
    """One capability: what it costs, and whether distributions are still tested."""
    skipped, distributions = glossary()[capability].skipped[contract], distribution_checks(contract)
    lost = [code for code in skipped if code in distributions]
    left = len(distributions) - len(lost)
    tested = f"yes, by {left}" if left else "no" if distributions else "-"
    return [f"`{capability}`", len(skipped), ", ".join(lost) or "none", tested, WHY[capability] if lost else ""]


def distribution_checks(contract: str) -> list[str]:
    """Codes of the distribution checks."""
    return [check.code for check in all_checks("statistical", contract)]
