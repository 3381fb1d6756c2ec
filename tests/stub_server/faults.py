"""Every fault of a server, by name. Many were found in real servers."""

from __future__ import annotations

from stub_server import draws, edits, returns
from stub_server.fault import Fault

FAULTS: dict[str, Fault] = {
    one.name: one for module in (draws, returns, edits) for one in vars(module).values() if isinstance(one, Fault)
}
