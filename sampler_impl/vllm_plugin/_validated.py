"""The releases and the source of each function that the suite has validated: `validated.json`.

`tools/validate_vllm.py` writes it. A release has an entry per function, and the evidence.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ._source import UnknownSourceError, source_hash

if TYPE_CHECKING:
    from collections.abc import Iterable

TABLE = Path(__file__).with_name("validated.json")


class NotValidatedError(Exception):
    """This vLLM was not validated; the message says what to do."""


def check(release: str, package: Path, piece: str, targets: Iterable[str]) -> None:
    """`piece` was validated for this release, and none of `targets` has changed since.

    Args:
        release: vLLM's version; local parts as in `0.22.0+cu129` are ignored; the hashes decide.
        package: The folder of the importable vLLM.

    Raises:
        NotValidatedError: If not.
    """
    public = release.partition("+")[0]
    remedy = f"Validate it with `python tools/validate_vllm.py {public}` in fairdraw's repository."
    entry = json.loads(TABLE.read_text(encoding="utf-8")).get(public)
    if entry is None or piece not in entry["pieces"]:
        raise NotValidatedError(f"vLLM {release} is not validated for it. {remedy}")
    for target in targets:
        expected = entry["functions"].get(target)
        try:
            found = source_hash(package, target)
        except UnknownSourceError as error:
            raise NotValidatedError(f"in this vLLM {release}, {error}. {remedy}") from None
        if found != expected:
            raise NotValidatedError(
                f"the source of {target} has hash {found}, but the one validated for vLLM {public} has {expected}. "
                f"{remedy}"
            )
