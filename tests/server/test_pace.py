"""The pace of a run on a server: a slow one is judged by fewer tokens, and the header says so."""

from __future__ import annotations

from typing import Any

import pytest

from fairdraw._core.checks import PROFILES
from fairdraw._mutants._toy_server import ToyServer
from fairdraw._run.loading import all_checks
from fairdraw._run.server_pace import Planned, planned, timed
from fairdraw.contracts import ServerSettings
from fairdraw.statistical._server_check import server_fairness

CHECKS, SMOKE = all_checks(contract="server"), PROFILES["smoke"]


def test_requests_beside_each_other_and_alone_are_estimated() -> None:
    assert Planned(drawn=80, others=30, alone=10).seconds(batch=0.4, one=0.1, count=8) == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("seconds", "settings", "scale"),
    [(1e-9, {}, 0.25), (1e9, {}, 1.0), (1e-9, {"tokens": 4000}, 1.0)],
    ids=["slow", "fast", "as many tokens as were asked for"],
)
def test_slow_server_is_judged_by_fewer_tokens(
    seconds: float, settings: dict[str, Any], scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairdraw._run.server_pace.SECONDS", {"smoke": seconds})
    server = ToyServer(settings=ServerSettings(logprobs=25, **settings))
    words, expected, found = timed(server, CHECKS, SMOKE, 0)
    assert (found, expected > 0) == (scale, True)
    assert [one for one in words if "of the profile's" in one] == [
        "25% of the profile's 4000 tokens, so that it ends in time; for more: --tokens 4000"
    ] * (scale < 1)
    assert "no power" not in server_fairness(CHECKS, server, SMOKE.scaled(found), 0)


def test_fewer_tokens_see_less() -> None:
    server = ToyServer()
    seen = [
        server_fairness(CHECKS, server, profile, 0).split("sees TV >= ")[1] for profile in (SMOKE, SMOKE.scaled(0.25))
    ]
    assert float(seen[0].split()[0]) < float(seen[1].split()[0])
    assert planned(server, CHECKS, SMOKE.scaled(0.25)).drawn < 0.5 * planned(server, CHECKS, SMOKE).drawn
