"""Samplers are found by name or path, refused in one sentence, and fed with the noise that the suite hands them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import CHECKS
from hypothesis import given, settings

from fairdraw import ExplicitNoise, adapters
from fairdraw import strategies as fst
from fairdraw._core.checks import PROFILES
from fairdraw._core.contracts import CONTRACTS
from fairdraw._run.runner import Session, run_check
from fairdraw.adapters import NoiseNotInjected, SamplerNotFound, inject_noise, load
from fairdraw.contracts._rejection import emit

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples.my_sampler:make"

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton is interpreted only where there is no GPU")


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter in which warnings are errors."""
    clean = {key: value for key, value in os.environ.items() if key not in ("TRITON_INTERPRET", "CUDA_VISIBLE_DEVICES")}
    env = {**clean, "PYTHONPATH": str(ROOT / "src"), **environment}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


# Names and paths


@pytest.fixture
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `examples` is importable."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Somebody's module in the current directory, which is not on `sys.path`."""
    (tmp_path / "third_party.py").write_text(
        "import fairdraw\n"
        "sampler = fairdraw.rejection_sampler(lambda batch, noise: None, name='third_party')\n"
        "def make(): return sampler\n"
        "def needy(argument): return sampler\n"
        "class Kernels:\n"
        "    name, device, capabilities = 'third_party', 'cpu', fairdraw.Capabilities()\n"
        "    def verify(self, batch, noise): return None\n"
        "class Unsure(Kernels):\n"
        "    capabilities = {}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    monkeypatch.delitem(sys.modules, "third_party", raising=False)
    return "third_party"


@pytest.mark.parametrize("attribute", ["make", "sampler", "Kernels"])
def test_path_names_a_factory_a_sampler_or_a_class(third_party: str, attribute: str) -> None:
    assert load(f"{third_party}:{attribute}").name == "third_party"


REFUSALS = {
    "no factory": ("third_party:", r"a path must be pkg\.module:factory"),
    "factory wants arguments": ("third_party:needy", r"TypeError: .*'argument'\. It is called without arguments\."),
    "no capabilities": ("third_party:Unsure", r"Unsure, which has no capabilities of the type fairdraw\.Capab"),
}


@pytest.mark.parametrize(("spec", "words"), REFUSALS.values(), ids=REFUSALS.keys())
def test_impossible_sampler_is_refused_in_one_sentence(third_party: str, spec: str, words: str) -> None:
    with pytest.raises(SamplerNotFound, match=words) as refusal:
        load(spec)

    assert str(refusal.value).startswith(f"load: sampler={spec!r}, but ")
    assert "\n" not in str(refusal.value)


def test_sampler_on_another_device_is_refused(third_party: str) -> None:
    with pytest.raises(SamplerNotFound, match=r"it runs on device='cpu' and not on 'cuda'\. Omit the device"):
        load(f"{third_party}:make", device="cuda")


def test_failing_built_in_sampler_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairdraw.adapters._rejection.race", lambda *_, **__: 1 / 0)

    with pytest.raises(SamplerNotFound, match=r"making it raised ZeroDivisionError: division by zero\."):
        load("rejection/torch")


# Triton's mode


@needs_no_gpu
def test_every_sampler_is_loaded_after_triton_was_set_to_interpret() -> None:
    """Much of torch imports triton, so the torch sampler must choose for a triton sampler that is loaded later.

    Checks and injected noise need neither of two packages that take seconds to import.
    """
    finished = run_python(
        "import sys, torch\n"
        "from fairdraw import ExplicitNoise\n"
        "from fairdraw.adapters import inject_noise, load\n"
        "from fairdraw._run.loading import all_checks\n"
        "all_checks(), load('rejection/torch')\n"
        "with inject_noise(ExplicitNoise(torch.ones(2).double() / 2, torch.ones(1, 3))): torch.rand(2)\n"
        "print(*(name for name in ('torch._dynamo', 'scipy.stats') if name in sys.modules))\n"
        "import torch._dynamo, triton.language as tl\n"
        "print(type(tl.cdiv).__name__, load('rejection/triton').capabilities.slow)"
    )

    assert finished.stdout.split() == ["InterpretedFunction", "True"], finished.stderr


@needs_no_gpu
def test_compiled_triton_without_a_gpu_is_refused() -> None:
    finished = run_python(
        "import triton.language\n"
        "from fairdraw.adapters import SamplerNotFound, load\n"
        "try: load('rejection/triton')\n"
        "except SamplerNotFound as error: print(error)"
    )

    assert "triton was imported before its interpreter was chosen" in finished.stdout, finished.stderr
    assert "Set TRITON_INTERPRET=1" in finished.stdout


# Examples


@pytest.mark.usefixtures("at_root")
def test_example_sampler_equals_the_oracle_on_explicit_noise() -> None:
    sampler, oracle = load(EXAMPLE), load("rejection/oracle", device="cpu")

    @settings(max_examples=50)
    @given(fst.rejection_cases(explicit=True))
    def check(case: fst.RejectionCase) -> None:
        specified = emit(oracle, case.batch(), case.noise())

        assert specified.tokens.tolist() == emit(sampler, case.batch(), case.noise()).tokens.tolist()

    check()


@pytest.mark.usefixtures("at_root")
@pytest.mark.parametrize("code", ["SAM121", "SAM141"])
def test_kernel_that_packs_rows_passes(code: str) -> None:
    session = Session(profile=PROFILES["smoke"], crash_folder=None)
    assert run_check(CHECKS[code], load("examples.token_kernel:make"), session).status == "passed"


def test_every_name_is_of_a_contract_and_every_alias_names_ours() -> None:
    contracts = set(CONTRACTS) - {"server"}  # which has addresses
    assert {name.partition("/")[0] for name in adapters.OWN_ROWS} == contracts
    ours = contracts - {"filters", "masks", "matchers", "watermarks"}  # which judge others, or the step
    assert {alias: load(alias, "cpu").name for alias in ours} == {one: f"{one}/torch" for one in ours}


def test_example_adapter_takes_at_most_twenty_lines() -> None:
    source = (ROOT / "examples" / "my_sampler.py").read_text()
    adapter = source[source.index("def verify(") :]

    assert sum(bool(line.strip()) for line in adapter.splitlines()) <= 20


# Injected noise


def noise_of(num_tokens: int = 3, batch_size: int = 2, vocab_size: int = 4) -> ExplicitNoise:
    return ExplicitNoise(
        torch.linspace(0, 1 - 2.0**-53, num_tokens, dtype=torch.float64),
        torch.arange(1.0, batch_size * vocab_size + 1).reshape(batch_size, vocab_size),
    )


DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "rand": lambda: torch.rand(3, dtype=torch.float64),
    "rand with a generator": lambda: torch.rand(3, dtype=torch.float64, generator=torch.Generator()),
    "rand in another shape": lambda: torch.rand((1, 3, 1), dtype=torch.float64),
    "rand into out": lambda: torch.rand(3, out=torch.empty(0, dtype=torch.float64)),
    "rand_like": lambda: torch.rand_like(torch.empty(3, dtype=torch.float16), dtype=torch.float64),
    "uniform_": lambda: torch.empty(3, dtype=torch.float64).uniform_(),
    "uniform_ with limits": lambda: torch.empty(3, dtype=torch.float64).uniform_(0, 1),
    "uniform_ into every other entry": torch.zeros(6, dtype=torch.float64)[::2].uniform_,
    "nn.init": lambda: torch.nn.init.uniform_(torch.empty(3, dtype=torch.float64)),
    "inference mode": torch.inference_mode()(lambda: torch.rand(3, dtype=torch.float64)),
    "exponential_": lambda: torch.empty(2, 4).exponential_(),
    "exponential_ with a generator": lambda: torch.empty(2, 4).exponential_(generator=torch.Generator()),
    "exponential_ with its rate": lambda: torch.empty(2, 4).exponential_(lambd=1.0),
    "flat": lambda: torch.empty(8).exponential_(),
    "wider": lambda: torch.empty(2, 4, dtype=torch.float64).exponential_(),
    "distributions": lambda: torch.distributions.Exponential(1.0).sample((2, 4)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_injected_numbers_are_what_the_draw_returns(name: str) -> None:
    noise = noise_of()
    with inject_noise(noise) as injected:
        drawn = DRAWS[name]()
    is_uniform = drawn.numel() == len(noise.uniforms)
    assert drawn.flatten().tolist() == (noise.uniforms if is_uniform else noise.exponentials).flatten().tolist()
    assert (injected.uniforms, injected.exponentials) == (int(is_uniform), int(not is_uniform))


def test_injected_float32_uniforms_stay_below_one() -> None:
    with inject_noise(noise_of()):
        drawn = torch.rand(3)

    assert drawn.tolist() == [0.0, 0.5, 1 - 2.0**-24]


def test_injection_leaves_generators_alone() -> None:
    own = torch.Generator().manual_seed(7)
    default_before, own_before = torch.get_rng_state(), own.get_state()
    with inject_noise(noise_of()):
        torch.rand(3, generator=own)
        torch.empty(2, 4).exponential_()

    assert torch.equal(default_before, torch.get_rng_state())
    assert torch.equal(own_before, own.get_state())


WRONG_DRAWS: dict[str, tuple[Callable[[], object], str]] = {
    "too few uniforms": (lambda: torch.rand(2), r"drew torch\.float32 \[2\] with aten\.rand.*handed in are \[3\]"),
    "exponential per token": (lambda: torch.empty(3, 4).exponential_(), r"drew .* \[3, 4\] .*handed in are \[2, 4\]"),
    "half precision": (lambda: torch.rand(3, dtype=torch.bfloat16), r"must be float32 or float64"),
    "uniforms twice": (lambda: (torch.rand(3), torch.rand(3)), r"the uniforms were handed in already"),
    "uniforms up to 2": (lambda: torch.empty(3).uniform_(0, 2), r"aten\.uniform_\.default\[\[3\], 0\.0, 2\.0\]"),
    "rate 2": (lambda: torch.empty(2, 4).exponential_(lambd=2.0), r"only standard uniforms and exponentials"),
    "normals": (lambda: torch.randn(3), r"drew aten\.randn"),
    "multinomial": (lambda: torch.multinomial(torch.ones(2, 4), 1), r"drew aten\.multinomial"),
    "nothing": (lambda: torch.ones(3), r"drew nothing through torch"),
}


@pytest.mark.parametrize(("draw", "words"), WRONG_DRAWS.values(), ids=WRONG_DRAWS.keys())
def test_injection_refuses_another_draw(draw: Callable[[], object], words: str) -> None:
    with pytest.raises(NoiseNotInjected, match=words), inject_noise(noise_of()):
        draw()


def test_batch_that_needs_no_noise_may_draw_nothing() -> None:
    with inject_noise(noise_of(), required=False) as not_required:
        pass
    with inject_noise(noise_of(num_tokens=0)) as without_drafts:
        pass

    assert not_required == without_drafts


def test_error_of_the_sampler_passes_through_the_injection() -> None:
    with pytest.raises(ZeroDivisionError), inject_noise(noise_of()):
        raise ZeroDivisionError
