"""Known defects of servers: strict expected failures, as `fairdraw check --xfails FILE` reads them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

DEFECTS = Path(__file__).with_name("known_defects.toml")


def known(server: str) -> dict[str, list[str]]:
    """Return code to the reasons of the entries that name the server."""
    found: dict[str, list[str]] = {}
    for entry in tomllib.loads(DEFECTS.read_text(encoding="utf-8"))["defect"]:
        for code in entry["checks"] if server in entry["servers"] else ():
            found.setdefault(code, []).append(f"{entry['reason']} ({entry['link']})")
    return found


def write_xfails(server: str, path: Path) -> Path:
    """Write the file for `--xfails`."""
    lines = (f"{code} = {json.dumps('; '.join(reasons))}\n" for code, reasons in known(server).items())
    path.write_text("".join(lines), encoding="utf-8")  # a JSON string is a TOML string
    return path
