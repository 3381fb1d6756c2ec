"""Real servers on loopback, with a tiny random model: started, asked by a few checks, stopped.

`make server` runs all checks. Here the defects that they are known to have must be found, and nothing else.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import CHECKS
from servers.defects import known, write_xfails
from servers.main import main
from servers.model import VOCAB, interleaved
from servers.process import SERVERS, ServerError, answers, running

from fairdraw._core.checks import PROFILES, AnyCheck
from fairdraw._core.failures import CheckFailure
from fairdraw._core.seeds import DEFAULT_SEED
from fairdraw._run.expected import read_xfails
from fairdraw._run.loading import load_sampler
from fairdraw.contracts import Server

ROOT = Path(__file__).parents[2]

CODES = {
    "llama.cpp": ("SRV103", "SRV121", "SRV141", "SRV143", "SRV149", "DIST911"),
    "llama.cpp-draft": ("SRV104", "SRV121", "SRV141"),
    "mlx": ("SRV141", "SRV147", "SRV148", "SRV149"),
    "mlx-draft": ("SRV122", "SRV147"),
    "transformers": ("SRV122", "SRV141", "SRV147", "SRV148"),
}
"""Of each server: some that it passes, and the defects that it is known to have. In all some 40 s of one core."""


@pytest.fixture(scope="module", params=CODES)
def started(request: pytest.FixtureRequest) -> Iterator[tuple[str, Server]]:
    """A server, and how it is named."""
    server = SERVERS[request.param]
    if sentence := server.missing():
        pytest.skip(sentence)
    with running(server) as up:
        yield server.name, load_sampler(f"{up.address}#{up.model}")  # type: ignore[misc]
        health = up.address.replace("/v1", "/health")
    assert not answers(health)


def test_known_defects_are_found_and_nothing_else(started: tuple[str, Server]) -> None:
    name, server = started
    failed = [code for code in CODES[name] if fails(CHECKS[code], server)]

    assert failed == [code for code in CODES[name] if code in known(name)]


def fails(check: AnyCheck, server: Server) -> bool:
    try:
        check.run(server, profile=PROFILES["smoke"], seed=DEFAULT_SEED)
    except CheckFailure:
        return True
    return False


# -- the tools, without a server --------------------------------------------------------------------------------------


def test_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("servers.process.version", lambda name: None if name == "xllamacpp" else "1")

    assert main(["llama.cpp-draft"]) == 2
    error = capsys.readouterr().err
    assert error == "llama.cpp-draft: xllamacpp not installed. Run: python tools/install.py others\n"


def test_server_that_does_not_start_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("raise ValueError('no such model')")
    monkeypatch.setattr("servers.process.INSIDE", wrong)
    monkeypatch.setattr(type(SERVERS["llama.cpp"]), "missing", lambda _: "")
    monkeypatch.setattr(type(SERVERS["llama.cpp"]), "write", lambda *_: None)

    with pytest.raises(ServerError, match=r"ended with code 1 \(ValueError: no such model\)"), running(SERVERS["mlx"]):
        pass


@pytest.mark.parametrize("name", SERVERS)
def test_known_defects_are_read_as_expected_failures(name: str, tmp_path: Path) -> None:
    codes = read_xfails(write_xfails(name, tmp_path / "xfails.toml"))

    assert set(codes) == set(known(name))
    reasons = [reason for found in known(name).values() for reason in found]
    pages = {page for reason in reasons for page in re.findall(r"docs/[\w/-]+\.md", reason)}
    assert [page for page in pages if not (ROOT / page).exists()] == []


def test_rotary_halves_are_interleaved_head_by_head() -> None:
    matrix = np.arange(64, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)

    assert interleaved(matrix)[:, 0].tolist()[:6] == [0, 16, 1, 17, 2, 18]
    assert interleaved(matrix)[:, 0].tolist()[32:36] == [32, 48, 33, 49]


def test_every_token_is_one_character() -> None:
    assert len(VOCAB) == len(set(VOCAB)) == 98
    assert {len(word) for word in VOCAB[2:]} == {1}
