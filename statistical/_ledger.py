"""Evidence over nightly runs: small biases add up until they are found, and a correct sampler is rarely accused.

A line of the ledger holds one table of one sampler on one device. It is tested in two ways.

* *Has something become wrong?* The nightly e-values multiply. An e-detector starts anew whenever the past supports the
  null, so that last year's good luck does not hide a fault introduced today: `M_t = E_t * max(1, M_{t-1})`.
* *Was something always a little wrong?* A bias far below what one nightly run can detect makes the product of nightly
  e-values shrink, not grow. The nightly *counts* add up, and an e-process over all of them, which bets on smaller and
  smaller distances, finds any fixed bias in the end (if the samples of 65536 nightly runs show it, after pooling).

Error rates:
    Each gets half of `false_fail_rate`. On a correct sampler the detector's mean time to an alarm is at least
    `2 / false_fail_rate` nightly runs, and the counts *ever* alarm with probability at most `false_fail_rate / 2`.
    A run may end early, at the checkpoint that decided it: e-values stay valid at any stopping time.

Reference:
    Shin, Ramdas, Rinaldo (2023), arXiv:2203.03532 (e-detectors).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fairdraw._core.array_types import PoolInts
from fairdraw._core.foreign import read_json
from fairdraw.statistical._design import SamplePlan
from fairdraw.statistical._evidence import log_e_value
from fairdraw.statistical._validation import check_rate, refuse

_NUM_P_VALUES_KEPT = 365

_LIFELONG_CONCENTRATIONS = tuple(4.0**power for power in range(-2, 9))
"""In units of the samples of one nightly run, so up to those of 65536. A grid this wide costs `log(11)`."""


@dataclass(frozen=True)
class LedgerEntry:
    """One line of the ledger.

    Args:
        fingerprint: Of the sampler; the line starts anew when it changes.
        log_detector: Logarithm of `M_t`; 0 on an empty line.
        cells: Fingerprint of the plan; counts of other cells cannot be added and start anew.
        counts: Sum over the nightly runs with these cells.
        log_lifelong: Logarithm of the e-value of `counts`.
        p_values: Of the last nightly runs, for tests of the suite itself: they must be uniform.
        seeds: Of the last nightly runs: the same draws are no new evidence.
    """

    fingerprint: str
    num_nightly_runs: int = 0
    log_detector: float = 0.0
    cells: str = ""
    counts: tuple[int, ...] = ()
    log_lifelong: float = 0.0
    p_values: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()

    def advance(self, counts: PoolInts, plan: SamplePlan, p_value: float, seed: int) -> LedgerEntry:
        """The line after one more nightly run with these pooled counts.

        Raises:
            ValueError: If the counts have other cells than the plan, or an earlier nightly run had the same seed.
        """
        if seed in self.seeds:
            raise refuse("LedgerEntry.advance", f"seed={seed}", "nightly runs must differ", "Draw a fresh seed.")
        probs, num_planned = plan.pooling.probs, plan.num_samples
        log_e = float(log_e_value(counts, probs, num_planned))
        cells = hashlib.blake2b(probs.tobytes() + str(num_planned).encode(), digest_size=8).hexdigest()
        total = counts + np.array(self.counts, dtype=np.int64) if cells == self.cells else counts
        return LedgerEntry(
            self.fingerprint,
            num_nightly_runs=self.num_nightly_runs + 1,
            log_detector=log_e + max(0.0, self.log_detector),
            cells=cells,
            counts=tuple(total.tolist()),
            log_lifelong=float(log_e_value(total, probs, num_planned, _LIFELONG_CONCENTRATIONS)),
            p_values=(*self.p_values, p_value)[-_NUM_P_VALUES_KEPT:],
            seeds=(*self.seeds, seed)[-_NUM_P_VALUES_KEPT:],
        )

    @property
    def log10_evidence(self) -> float:
        """The larger of both tests of the line."""
        return max(self.log_detector, self.log_lifelong) / math.log(10)

    def alarms(self, false_fail_rate: float) -> bool:
        """Whether the accumulated evidence has reached its threshold."""
        check_rate("LedgerEntry.alarms", "false_fail_rate", false_fail_rate)
        return max(self.log_detector, self.log_lifelong) >= math.log(2 / false_fail_rate)


@dataclass
class Ledger:
    """A file of lines, one per sampler, table and device."""

    entries: dict[str, LedgerEntry] = field(default_factory=dict)

    def record(
        self, key: str, fingerprint: str, counts: PoolInts, plan: SamplePlan, p_value: float, seed: int
    ) -> LedgerEntry:
        """Add one nightly run to a line, which starts anew if the sampler's fingerprint has changed."""
        entry = self.entries.get(key)
        if entry is None or entry.fingerprint != fingerprint:
            entry = LedgerEntry(fingerprint)
        self.entries[key] = entry.advance(counts, plan, p_value, seed)
        return self.entries[key]

    @classmethod
    def load(cls, path: Path) -> Ledger:
        """The ledger in a file; an empty one if there is no file.

        Raises:
            ValueError: If the file is not a ledger.
        """
        if not path.exists():
            return cls()
        try:
            lines = read_json(path.read_text())
            for line in lines.values():
                line |= {name: tuple(line[name]) for name in ("counts", "p_values", "seeds")}
            return cls({key: LedgerEntry(**line) for key, line in lines.items()})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise refuse("Ledger.load", f"path={path}", f"it must be a ledger ({error})", "Move it away.") from error

    def save(self, path: Path) -> None:
        """Write the ledger; a reader sees the old file or the new one, never half of it."""
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        lines = {key: dataclasses.asdict(entry) for key, entry in self.entries.items()}
        unfinished.write_text(json.dumps(lines, indent=1))
        os.replace(unfinished, path)
