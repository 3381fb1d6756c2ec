"""Seeds by hashing: every random number of the suite follows from drawn data and one session seed."""

import hashlib

from fairdraw import __version__


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from the printed form of `parts`.

    Hashing keeps neighbouring inputs apart: seeds 0 and 1 of a linear congruential or Philox stream
    may be related, their hashes are not.

    Example:
        >>> derive_seed("noise", 0) != derive_seed("noise", 1)
        True
    """
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1


DEFAULT_SEED = derive_seed("session", __version__) % 1_000_000
"""The seed of a run that names none: fixed within a release of the suite, so that CI is repeatable."""
