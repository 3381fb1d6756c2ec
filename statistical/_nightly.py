"""What a run writes on request: a picture of every statistic, and a line per table in a ledger.

    fairdraw check rejection/torch --only statistical --pictures pictures/
    fairdraw check rejection/torch --only statistical --profile nightly --seed fresh --ledger ledger.json

Both use the counts that the checks were decided by. What was drawn for them is not drawn again (with `-n`, where other
processes drew it, it is).
"""

import dataclasses
import hashlib
import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from fairdraw._core.budget import BudgetEnded, cut_short
from fairdraw._core.checks import AnyCheck, Conditions, OutOfTime, Profile, Stage
from fairdraw._core.failures import CheckFailure, Inconclusive
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw.contracts import RejectionSampler
from fairdraw.statistical._decision import Verdict, weigh
from fairdraw.statistical._design import SamplePlan
from fairdraw.statistical._distribution_check import DistributionCheck
from fairdraw.statistical._ledger import Ledger
from fairdraw.statistical._pictures import Picture, write_pictures
from fairdraw.statistical._validation import refuse

LEDGER_RATE = 1e-4
"""Of all lines of a ledger together; see `ledger` for what it bounds."""


def judged_tables(
    checks: Iterable[AnyCheck], sampler: Any, profile: Profile, seed: int, out_of_time: OutOfTime = lambda: False
) -> Iterator[Picture]:
    """Every table that the supported checks judge, with the counts of their decisions; empty ones are left out.

    The sampler is `Any`: of the contract that the checks are about.

    Raises:
        BudgetEnded: If time is out before a check is decided.

    Randomness:
        That of the checks. What was drawn for them in this process is not drawn again.
    """
    for check in checks:
        if not isinstance(check, DistributionCheck) or check.why_not(sampler) is not None:
            continue
        sampling_plan, (planned, plans) = check.sampling_plan(sampler, profile), check.planned(sampler, profile, seed)
        decision = check.decide(sampler, profile, seed, out_of_time)
        if decision.verdict is Verdict.INCONCLUSIVE and decision.num_checkpoints < planned and out_of_time():
            raise BudgetEnded
        for name, counts in decision.counts.items():
            plan = plans[name]
            if isinstance(plan, SamplePlan) and counts[:-1].any():
                yield Picture(f"{check.code} {name}", counts, plan, sampling_plan.tables[name])


def draw_pictures(
    folder: Path,
    checks: Iterable[AnyCheck],
    sampler: Any,
    profile: Profile,
    seed: int,
    out_of_time: OutOfTime = lambda: False,
) -> list[Path]:
    """A PNG per table, observed against expected with the bands of chance; the files.

    Args:
        out_of_time: Checks that are not decided when it becomes true have no pictures.

    The sampler is `Any`: of the contract that the checks are about.

    Raises:
        ImportError: If Matplotlib is not installed.
    """

    def complete_tables() -> Iterator[Picture]:
        for check in checks:
            with suppress(BudgetEnded):
                yield from judged_tables([check], sampler, profile, seed, out_of_time)

    return write_pictures(folder, complete_tables())


def fingerprint(sampler: RejectionSampler) -> str:
    """Changes when the code of a sampler does: its package's loaded sources, and the versions of what runs them.

    A sampler of fairdraw itself counts as its adapter and `sampler_impl`; any other as the top package of its class.
    """
    home = inspect.unwrap(getattr(sampler, "function", None) or type(sampler)).__module__
    ours = ("fairdraw.adapters", "fairdraw.sampler_impl")
    own = ours if home.startswith(ours) else (home.split(".")[0],)
    digest = hashlib.blake2b(digest_size=8)
    for name, module in sorted(sys.modules.items()):
        if any(name == prefix or name.startswith(f"{prefix}.") for prefix in own):
            path = getattr(module, "__file__", None)
            digest.update(name.encode())
            if path is not None:
                with open(path, "rb") as source:
                    digest.update(source.read())
    for package in ("torch", "triton", "vllm"):
        digest.update(f"{package} {_version(package)}".encode())
    return digest.hexdigest()


def _version(package: str) -> str:
    """The installed version of a package, or `none`."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


@dataclass(frozen=True)
class LedgerCheck(AnyCheck):
    """The check that no evidence adds up over nightly runs.

    Args:
        path: Of the ledger.
        checks: Their tables are entered.
    """

    path: Path
    checks: tuple[AnyCheck, ...]

    def judge(self, sampler: RejectionSampler, under: Conditions) -> int:
        """Enter this nightly run, then judge all of them together.

        Args:
            under: The seed is fresh: no two runs of a ledger have the same. If time is out before all tables are
                counted, nothing is entered.

        Returns:
            The number of nightly runs of the longest line.

        Raises:
            CheckFailure: If a line alarms.
            Inconclusive: If time is out, or no table was judged.
            ValueError: If the ledger already has the seed, or is no ledger.

        Error rates:
            See `ledger`; each line has an equal share of 1e-4.
        """
        ledger, mark = Ledger.load(self.path), fingerprint(sampler)
        try:
            if under.out_of_time():
                raise BudgetEnded
            tables = list(judged_tables(self.checks, sampler, under.profile, under.seed, under.out_of_time))
        except BudgetEnded:
            raise cut_short("this nightly run is not entered") from None
        if not tables:
            raise Inconclusive("no table was judged: nothing is entered")
        entries = {}
        for table in tables:
            counts, _ = table.plan.pooling.pool(table.counts)
            p_value = weigh(table.name, table.counts, table.plan, table.table).p_value
            key = f"{sampler.name} {table.name} {sampler.device}"
            entries[table.name] = ledger.record(key, mark, counts, table.plan, p_value, under.seed)
        ledger.save(self.path)
        worst = max(entries, key=lambda name: entries[name].log10_evidence)
        if entries[worst].alarms(LEDGER_RATE / len(entries)):
            raise CheckFailure(
                f"{worst}: over {entries[worst].num_nightly_runs} nightly runs "
                f"E = 10^{entries[worst].log10_evidence:.1f}",
                evidence=f"{len(entries)} lines share a rate of {LEDGER_RATE:g}; ledger {self.path}",
            )
        return max(entry.num_nightly_runs for entry in entries.values())

    def again(self, profile: str, seed: int) -> dict[str, str]:
        """Another nightly run, because the ledger already has this one's seed."""
        return {"--only": self.suite, "--profile": profile, "--seed": "fresh", "--ledger": str(self.path)}

    def __call__(self, sampler: RejectionSampler) -> None:
        """Not for `parametrize_with_checks`: a nightly run needs a seed of its own."""
        raise refuse("LedgerCheck", "no seed", "a nightly run must have one of its own", "Use fairdraw check --ledger.")


LEDGER = LedgerCheck(
    "DIST901",
    "no evidence adds up over nightly runs",
    "Biases too small for one nightly run show over many: e-values multiply, and counts add up.\n\n"
    "Look at the table that is named; its line started when the sampler's code last changed.",
    "rejection",
    "statistical",
    (),
    Path("FILE"),
    (),
    stage=Stage.HISTORY,
)
"""Runs after the other checks if `--ledger FILE` is given."""


def ledger_check(path: Path, checks: Iterable[AnyCheck], seed: int) -> LedgerCheck:
    """The check that enters a run into the ledger at `path`.

    Raises:
        ValueError: If the seed is the release's, which every nightly run would share, or the file is no ledger.
    """
    if seed == DEFAULT_SEED:
        raise refuse("ledger_check", f"seed={seed} is the release's", "nightly runs must differ", "Add --seed fresh.")
    Ledger.load(path)
    return dataclasses.replace(LEDGER, path=path, checks=tuple(checks))
