"""Signatures of what fairdraw itself wrote, on this account and in this folder.

A crash file names a sampler, and a name is code: replaying imports and calls it. So files from elsewhere must be
distinguished from one's own. The place of a file proves nothing, since an archive may unpack into `.fairdraw/crashes`,
and neither would a key in the project folder, which the archive could bring along. The key is therefore kept with the
account's state (`$XDG_STATE_HOME/fairdraw/key`, by default below `~/.local/state`), readable by its owner alone, and
the folder is signed with the text.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

_KEY_SIZE = 32


def sign(text: str) -> str:
    """The signature of `text` as written in the current directory; empty if this account can keep no key."""
    key = _read_key() or _made_key()
    return "" if key is None else _signature(key, text)


def is_signed(text: str, signature: str) -> bool:
    """Whether `sign(text)` gave `signature` here: by this account, in the current directory."""
    key = _read_key()
    return key is not None and hmac.compare_digest(_signature(key, text).encode(), signature.encode(errors="replace"))


def _signature(key: bytes, text: str) -> str:
    signed = b"\0".join((os.fsencode(Path.cwd().resolve()), text.encode(errors="surrogatepass")))
    return hmac.new(key, signed, hashlib.blake2b).hexdigest()[:64]


def _key_path() -> Path | None:
    """Where the key is; `None` if the account has no home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        folder = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:  # no home can be found
        return None
    return folder / "fairdraw" / "key"


def _read_key() -> bytes | None:
    """The key, if it is the account's own and nobody else may read it."""
    path = _key_path()
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            key = file.read(_KEY_SIZE + 1)
    except OSError:
        return None
    own = not hasattr(os, "getuid") or (about.st_uid == os.getuid() and not about.st_mode & 0o077)
    return key if own and stat.S_ISREG(about.st_mode) and len(key) == _KEY_SIZE else None


def _made_key() -> bytes | None:
    """A new key; `None` if there is one that cannot be used, or none can be written.

    Processes may race: each writes a file of its own and links it to the name, which succeeds for one of them.
    """
    path = _key_path()
    if path is None:
        return None
    mine = path.with_name(f"key-{secrets.token_hex(8)}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with os.fdopen(os.open(mine, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                file.write(secrets.token_bytes(_KEY_SIZE))
            os.link(mine, path)
        finally:
            mine.unlink(missing_ok=True)
    return _read_key()
