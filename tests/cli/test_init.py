"""`fairdraw init` writes files that work at once, reports what it could not know, and touches no file that exists."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from helpers import fairdraw

from fairdraw._core.contracts import CONTRACTS
from fairdraw._run.capability_words import glossary
from fairdraw._run.loading import load_sampler
from fairdraw.contracts import AnySampler

DOCS = Path(__file__).resolve().parents[2] / "docs"
KERNELS = """
import torch
from fairdraw import ExplicitNoise, RaceNoise, SamplingBatch, SpecDecodeBatch
from fairdraw._oracles.logits_plan import LogitsPlanOracle
from fairdraw._oracles.matchers import MatcherOracle, OpensOracle
from fairdraw._oracles.rejection import verify as oracle
from fairdraw._oracles.sampling import sample as sampling_oracle

def explicit(draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs, target_logits,
             bonus_token_ids, temperature, uniforms, exponentials, eps=0, *rest):
    batch = SpecDecodeBatch(draft_token_ids, num_draft_tokens, cu_num_draft_tokens, max_spec_len, draft_probs,
                            target_logits, bonus_token_ids, temperature)
    return oracle(batch, ExplicitNoise(uniforms, exponentials))

verify = explicit

def careless(draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, q, target_logits,
             bonus_token_ids, temperature, uniforms, exponentials):
    return explicit(draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, None, target_logits,
                    bonus_token_ids, temperature, uniforms, exponentials)

def draws(logits, temperature, exponentials):
    return sampling_oracle(SamplingBatch(logits, temperature, None, None, None, None), RaceNoise(exponentials))

def penalise(logits, prompt_token_ids, output_token_ids, presence_penalties, frequency_penalties,
             repetition_penalties):
    def counted(token_ids):
        return torch.bincount(torch.tensor(token_ids, dtype=torch.int64), minlength=logits.shape[1])

    counts = torch.stack([counted(output) for output in output_token_ids])
    seen = (counts > 0) | (torch.stack([counted(prompt) for prompt in prompt_token_ids]) > 0)
    factor = repetition_penalties[:, None]
    logits = torch.where(seen, torch.where(logits > 0, logits / factor, logits * factor), logits)
    return logits - frequency_penalties[:, None] * counts - presence_penalties[:, None] * (counts > 0)

def think(output_token_ids, thinking_token_budget):
    return []

def process(batch, setup):
    return LogitsPlanOracle().process(batch, setup)

class Drawing:
    def __call__(self, logits, temperature, top_k, exponentials):
        batch = SamplingBatch(logits, temperature, top_k.int(), None, None, None)
        return sampling_oracle(batch, RaceNoise(exponentials))

class Walking(MatcherOracle):
    def __init__(self, grammar):
        super().__init__(grammar, {})

class Compiling:
    def compile_grammar(self, grammar):
        return OpensOracle(grammar)

class Foreign:
    def __init__(self, pattern): ...
    def accept_token(self, token_id): ...
    def fill_bitmask(self, bitmask): ...
    def rollback(self, num_tokens): ...

def odd(draft_token_ids, workspace): ...
def chain(draft_ids, draft_lens, q, p, generator=None): ...
def seeded(draft_token_ids, target_probs, seed): ...
def bare(draft_token_ids, target_probs): ...
def inverse(draft_token_ids, draft_probs, target_probs, uniforms, synthetic_rates): ...
def own(draft_token_ids, draft_probs, target_probs, generators): ...
def global_rng(logits, temperature, top_k): ...
def renamed(logits, t, k): ...
def mystery(a, b): ...
def both(batch, noise): ...
constant = 3
"""

NUMPY = """
import numpy as np

def draw(logits, temperature, min_p, exponentials):
    probs = np.exp((logits - logits.max(1, keepdims=True)) / np.maximum(temperature, 1e-6)[:, None])
    return np.where(probs >= min_p[:, None], probs / exponentials, 0).argmax(1)

def masked(logits, temperature, exponentials, words, token_ids, counts):
    kept = logits > -np.inf
    counts[:] = kept.sum(1)
    for row, ids in zip(token_ids, map(np.flatnonzero, kept)):
        row[: len(ids)] = ids[: len(row)]
    bits = np.pad(kept, ((0, 0), (0, 32 * words.shape[1] - kept.shape[1])))
    words[:] = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
    return draw(logits, temperature, np.zeros(len(logits)), exponentials)

def returned(logits, temperature, exponentials, words, token_ids, counts):
    own = [array.copy() for array in (words, token_ids, counts)]
    return masked(logits, temperature, exponentials, *own), *own
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_controls: None) -> Path:
    """A folder with somebody's kernels, as the current one."""
    (tmp_path / "kernels_of_init.py").write_text(KERNELS)
    (tmp_path / "numpy_of_init.py").write_text(NUMPY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def init(function: str, *options: str, module: str = "kernels_of_init") -> Result:
    return fairdraw("init", f"{module}:{function}", *options)


def adapted(function: str) -> AnySampler:
    """What the written adapter makes."""
    return load_sampler(f"fairdraw_{function}:make")


def printed(result: Result, what: str) -> str:
    """The line of what init printed that begins so."""
    (line,) = (line for line in result.output.splitlines() if line.startswith(what))
    return line


# Files that work at once

AT_ONCE = {
    "rejection": ("explicit", ("REJ101", "REJ401")),
    "called as the adapter's function": ("verify", ("REJ101",)),
    "sampling": ("draws", ("SAM101", "SAM121")),
    "penalties": ("penalise", ("PEN101",)),
    "logits plan": ("process", ("PLAN101", "PLAN130")),
    "NumPy, where None may be": ("draw", ("SAM102",)),
    "a class that is called": ("Drawing", ("SAM102", "SAM141")),
    "NumPy, written to": ("masked", ("MSK102", "MSK105", "MSK107")),
    "NumPy, returned": ("returned", ("MSK102", "MSK105", "MSK107")),
    "a class of matchers": ("Walking", ("MAT101",)),
    "a class with the contract's method": ("Compiling", ("MAT101",)),
}


@pytest.mark.parametrize(("function", "codes"), AT_ONCE.values(), ids=AT_ONCE)
def test_written_adapter_runs_at_once(function: str, codes: tuple[str, ...]) -> None:
    module = "numpy_of_init" if function in ("draw", "masked", "returned") else "kernels_of_init"
    assert init(function, module=module).exit_code == 0
    words = ["check", f"fairdraw_{function}:make", "--profile", "smoke", *(w for code in codes for w in ("-k", code))]
    result = fairdraw(*words)
    assert result.exit_code == 0, result.output
    assert f": {len(codes)} passed" in result.output


RECIPES = {
    "sampling": ("sample", "SAM101"),
    "rejection": ("chain_verify", "REJ101"),
    "penalties": ("Penalties", "PEN101"),
    "thinking-budget": ("Budgets", "THK101"),
    "logits-plan": ("process", "PLAN101"),
    "logprobs": ("logprobs", "LPR101"),
    "grammar": ("mask", "GRM101"),
    "filters": ("filter_logits", "FIL103"),
    "masks": ("sample_masked", "MSK105"),
    "matchers": ("Compiled", "MAT101"),
    "watermarks": ("sample_watermarked", "WMK105"),
    "server": ("generate", "SRV102"),
}


@pytest.mark.parametrize("page", RECIPES)
def test_adapter_of_a_recipe_of_the_manual_runs(page: str, here: Path) -> None:
    function, code = RECIPES[page]
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL)
    (own,) = (block for block in blocks if re.search(rf"^(def|class) {function}\b", block, re.MULTILINE))
    own = re.split(r"^(?:def make|records =|LACKS =)", own, maxsplit=1, flags=re.MULTILINE)[0]
    (here / f"recipe_{function}.py").write_text(f"import fairdraw\nimport torch\n{own}")
    named = ("--contract", page) if page in ("grammar", "masks", "watermarks", "server") else ()
    init(function, *named, module=f"recipe_{function}")
    assert ": 1 passed" in fairdraw("check", f"fairdraw_{function}:make", "--profile", "smoke", "-k", code).output


def test_recipe_of_matchers_is_checked_by_its_path(here: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "matchers.md").read_text(), re.DOTALL)
    (here / "recipe_of_matchers.py").write_text(block.partition("\nchecks = ")[0])
    output = fairdraw("check", "recipe_of_matchers:make", "--profile", "smoke", "-k", "MAT10").output
    assert ": 6 passed" in output  # its matchers have neither reset nor fork nor forced
    assert "skipped 3" in output


def test_sampler_that_ignores_draft_probabilities_of_another_name_is_caught(here: Path) -> None:
    assert init("careless").exit_code == 0
    path = here / "fairdraw_careless.py"
    path.write_text(path.read_text().replace("q=...", "q=batch.draft_probs"))
    result = fairdraw("check", "fairdraw_careless:make", "--profile", "smoke", "-k", "REJ701")
    assert result.exit_code == 1
    assert "RED: checks failed: 1" in result.output


def test_file_that_exists_is_kept_and_the_others_are_written(here: Path) -> None:
    (here / "fairdraw_odd.py").write_text("mine")
    result = init("odd")
    assert result.exit_code == 0
    assert "kept, it exists: fairdraw_odd.py" in result.output
    assert (here / "fairdraw_odd.py").read_text() == "mine"
    for name in ("test_fairdraw_odd.py", ".github/workflows/fairdraw.yml"):
        assert f"written: {name}" in result.output
        assert (here / name).is_file()


# The contract


@pytest.mark.parametrize("function", ["mystery", "both"])
def test_contract_that_nothing_shows_must_be_named(function: str) -> None:
    refused = init(function)
    assert refused.exit_code == 2
    assert re.search(r"but they must show one contract, .* rejection and sampling.*Add --contract NAME", refused.output)
    assert printed(init(function, "--contract", "sampling"), "contract: ") == "contract: sampling"


# What names do not decide


def test_parameters_without_a_value_are_reported() -> None:
    result = init("odd")
    text = Path("fairdraw_odd.py").read_text()
    (asked,) = re.findall(r"line (\d+): what is workspace\?", result.output)
    assert "# QUESTION: what is workspace?" in text.splitlines()[int(asked) - 1]
    assert result.output.count("what is workspace?") == text.count("what is workspace?") == 1
    assert printed(init("explicit"), "not passed").endswith(": eps, rest")


def test_methods_of_another_name_are_asked_for() -> None:
    result = init("Foreign")
    assert "contract: matchers" in result.output
    assert ": what are accept, fill, is_terminated called here?" in result.output


def test_missing_name_declares_nothing_while_another_may_stand_for_it(here: Path) -> None:
    """The draft probabilities are called `q` there, and a generator may hold the noise."""
    result = init("chain")
    assert set(adapted("chain").capabilities.unsupported) == {"upstream-stream", "synthetic-rates"}
    assert re.findall(r": what is (\w+)\?", result.output) == ["draft_ids", "draft_lens", "q", "p"]
    text = (here / "fairdraw_chain.py").read_text()
    _, _, left = text.partition("# QUESTION: does any of draft_ids, draft_lens, q, p take these?")
    assert re.findall(r'# "([\w-]+)": .+,  # ', left) == ["explicit-noise", "request-seeds", "dense-drafts"]
    assert '# "dense-drafts": "our drafts are one-hot",  # batch.draft_probs' in text


def test_other_correct_ways_are_comments_that_can_be_taken_away(here: Path) -> None:
    assert ": which is true of yours? Take its # away" in init("explicit").output
    path = here / "fairdraw_explicit.py"
    before = adapted("explicit").capabilities.unsupported
    choices = {"token-verification", "reference-race", "reference-rounding", "lowest-id-ties"}
    assert not choices & set(before)
    for word in choices:
        path.write_text(path.read_text().replace(f'# "{word}"', f'"{word}"'))
    assert max(map(len, path.read_text().splitlines())) <= 120
    found: dict[str, Any] = {}
    exec(compile(path.read_text(), "adapter", "exec"), found)
    assert set(found["make"]().capabilities.unsupported) == {*before, *choices}


@pytest.mark.parametrize("function", ["penalise", "think", "process"])
def test_every_way_of_a_policy_is_asked_for_and_can_be_declared(here: Path, function: str) -> None:
    init(function)
    text = (here / f"fairdraw_{function}.py").read_text()
    asked = re.findall(r"^ +# (\w+)=(.+),$", text, re.MULTILINE)
    assert len(asked) >= text.count("QUESTION: another way than vLLM's?") > 0
    for name, value in asked:
        found: dict[str, Any] = {}
        exec(compile(text.replace(f"# {name}={value},", f"{name}={value},"), "adapter", "exec"), found)
        assert getattr(found["make"]().policy, name) == eval(value, found)


HANDED, NO_FILTERS = {"seeded-noise", "request-seeds"}, {"top-p", "min-p"}


@pytest.mark.parametrize(
    ("function", "unsupported", "left"),
    [
        ("seeded", {"explicit-noise", "synthetic-rates", "request-seeds"}, "dense-drafts"),
        ("bare", {"explicit-noise", "synthetic-rates", "request-seeds"}, "dense-drafts"),
        ("own", {"explicit-noise", "synthetic-rates"}, ""),
        ("inverse", HANDED, ""),
        ("global_rng", {"explicit-noise", "request-seeds", "counter-noise", "draft-distribution", *NO_FILTERS}, ""),
        ("renamed", {"draft-distribution"}, "request-seeds"),
    ],
)
def test_unsupported_capabilities_are_reported_with_their_cost(function: str, unsupported: set[str], left: str) -> None:
    result = init(function)
    sampler = adapted(function)
    assert set(sampler.capabilities.unsupported) == {"upstream-stream", *unsupported}
    named = re.findall(r"([\w-]+) \((\d+) checks\)", printed(result, "declared unsupported, check it in"))
    skipped = {
        str(word): glossary()[word].skipped for word in sampler.capabilities.unsupported if word != "draft-distribution"
    }
    contract = str(getattr(sampler, "contract", ""))
    assert {word: int(number) for word, number in named} == {w: len(by.get(contract, ())) for w, by in skipped.items()}
    question = Path(f"fairdraw_{function}.py").read_text().partition("take these?")[2]
    assert f'# "{left}' in question if left else question == ""


# The workflow


@pytest.mark.parametrize("function", ["explicit", "penalise"])
def test_workflow_is_valid_and_complete(function: str) -> None:
    init(function)
    text = Path(".github/workflows/fairdraw.yml").read_text()
    found = yaml.safe_load(text)
    assert set(found[True]) == {"pull_request", "push", "schedule"}  # YAML reads `on` as true
    job = found["jobs"]["sampler"]
    assert "timeout-minutes" in job
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert [run.split()[:2] for run in runs] == [["pip", "install"]] * 3 + [["fairdraw", "check"]] * 3
    for run, (event, profile) in zip(runs[3:], PROFILES.items(), strict=True):
        (step,) = (step for step in job["steps"] if step.get("run") == run)
        assert step["if"] == f"github.event_name == '{event}'"
        assert run.startswith(f"fairdraw check fairdraw_{function}:make --profile {profile} ")
    draws = CONTRACTS[str(getattr(adapted(function), "contract", ""))].has_distributions
    assert ("--seed fresh --ledger ledger.json" in runs[-1]) == draws
    assert any(step.get("uses") == "actions/cache@v4" for step in job["steps"]) == draws
    assert job["steps"][1]["with"]["cache"] == "pip"
    assert {"report.html", "run.jsonl", ".fairdraw/crashes"} <= set(job["steps"][-1]["with"]["path"].split())
    assert "PLACEHOLDER" not in text
    assert max(map(len, text.splitlines())) <= 120


PROFILES = {"pull_request": "smoke", "push": "ci", "schedule": "nightly"}


def test_commented_gpu_job_is_valid_without_its_comment_signs() -> None:
    init("explicit")
    text = Path(".github/workflows/fairdraw.yml").read_text()
    head, _, gpu = text.partition("Take the # away:\n")
    jobs = yaml.safe_load(f"{head}\n{re.sub('^  # ', '  ', gpu, flags=re.MULTILINE)}")["jobs"]
    assert set(jobs) == {"sampler", "gpu"}
    assert any("fairdraw check fairdraw_explicit:make --profile ci" in str(step) for step in jobs["gpu"]["steps"])


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (
            "absent",
            "cannot be imported: load: sampler='kernels_of_init:absent', but kernels_of_init has no attribute absent",
        ),
        ("constant", "is a int, but it must be callable"),
        ("", "must be pkg.module:callable"),
    ],
)
def test_what_is_no_callable_is_refused_in_one_sentence(function: str, sentence: str) -> None:
    result = init(function)
    assert result.exit_code == 2
    assert sentence in result.output
