"""The plugin's piece for model runner V2, in a vLLM that has it: on against off, mutants of the wiring, fallbacks.

A process has one vLLM: `test_vllm_plugin_alone.py` starts this file, without the mutants, with one that has V2. With
them it takes a minute or two: `make plugin-v2`.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairdraw.adapters import release_number
from fairdraw.sampler_impl import vllm_plugin
from fairdraw.sampler_impl._step import pytorch
from fairdraw.sampler_impl.step import StepInputs
from fairdraw.sampler_impl.vllm_plugin import _plugin, _source, _step, _step_states, _validated
from fairdraw.sampler_impl.vllm_plugin._pieces import PIECES

INSTALLED = next((found.version for found in metadata.distributions(name="vllm")), "0")
if release_number(INSTALLED.partition("+")[0]) < (0, 33):
    pytest.skip("this vLLM has no RejectionSampler._verify: see test_vllm_plugin_alone.py", allow_module_level=True)
else:
    from fairdraw_engines._vllm_validation import v2_device, v2_rows, v2_server, v2_steps


torch = v2_steps.torch


FIRST_STEPS = [v2_server.Trace(seed, 1, "bfloat16" if seed % 3 == 0 else "float32") for seed in range(40)]
"""One step each: what vLLM does with it does not depend on ours."""
TRACE = v2_server.Trace(2, 6)
WITH_LOGITS = [
    v2_server.Trace(seed, 6, "bfloat16" if seed % 2 == 0 else "float32", probabilistic=True) for seed in range(3)
]
"""Drafters that keep their logits."""
BY_UPSTREAM: dict[v2_server.Trace, v2_steps.Ran] = {}


STEP = next(piece for piece in PIECES if piece.name == "step")
PACKAGE = Path(sys.modules["vllm"].__file__ or "").parent
HASHES = {target: _source.source_hash(PACKAGE, target) for target in STEP.functions}


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This very source counts as validated, as while `fairdraw validate-vllm` runs."""
    table = tmp_path / "table.json"
    table.write_text(json.dumps({v2_server.RELEASE: {"pieces": {"step": {}}, "functions": HASHES}}))
    monkeypatch.setattr(_validated, "TABLE", table)
    yield
    vllm_plugin.unpatch()


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """First steps of vLLM are played once, and the source is trusted: mutants take milliseconds."""
    run = v2_steps.run_upstream

    def cached(server: v2_server.Server, parts: Any) -> v2_steps.Ran:
        if server.trace.num_steps > 1:
            return run(server, parts)
        if server.trace not in BY_UPSTREAM:
            BY_UPSTREAM[server.trace] = run(server, parts)
        return BY_UPSTREAM[server.trace]

    monkeypatch.setattr(v2_steps, "run_upstream", cached)
    monkeypatch.setattr(_validated, "check", lambda *_: None)


def differences(*traces: v2_server.Trace) -> list[str]:
    """The first ones."""
    with v2_steps.plugin():
        comparison = v2_steps.Comparison()
        for trace in traces:
            comparison.play(trace)
            if comparison.differences:
                break
        return comparison.differences


@pytest.mark.usefixtures("known")
def test_steps_agree() -> None:
    report = v2_steps.compare([*FIRST_STEPS[:8], TRACE, WITH_LOGITS[0], v2_server.Trace(4, 3, speculative=False)])
    assert report["differences"] == []
    assert report["calls"]["ours"] >= report["counts"]["steps"] - report["counts"].get("left to vLLM", 0)
    assert report["counts"]["rows"] > 40


@pytest.mark.usefixtures("known")
def test_interpreted_kernels_agree() -> None:
    report = v2_steps.compare([*FIRST_STEPS[:3], dataclasses.replace(WITH_LOGITS[0], num_steps=4)], "triton")
    assert report["differences"] == []
    assert report["parameters"]["drafts with logits"] > 0


# Mutants of the wiring.


def changed_inputs(patch: pytest.MonkeyPatch, change: Any) -> None:  # Any: from inputs to inputs
    made = _step_states.step_inputs
    patch.setattr(_step, "step_inputs", lambda *args, **options: change(made(*args, **options)))


def changed(value: Any, path: str, change: Any) -> Any:  # Any: inputs, or a group of them
    """Change what stands at a path of names; what is not given on the way stays so."""
    name, _, rest = path.partition(".")
    found = getattr(value, name)
    if found is None:
        return value
    return dataclasses.replace(value, **{name: changed(found, rest, change) if rest else change(found)})


def change_inputs(patch: pytest.MonkeyPatch, paths: str, change: Any) -> None:  # Any: from a value and all inputs
    def of_all_paths(inputs: StepInputs) -> StepInputs:
        found = inputs
        for path in paths.split():
            found = changed(found, path, lambda value: change(value, inputs))
        return found

    changed_inputs(patch, of_all_paths)


def not_read(_: object, inputs: StepInputs) -> None:
    return None


def of_the_neighbour(rows: Any, inputs: StepInputs) -> Any:  # Any: Tensor [num_slots, ...] any
    return rows.roll(1, 0)


def last_rows_of(logits: Any, inputs: StepInputs) -> Any:  # Any: Tensor [num_rows, vocab_size] any
    """Each request's last row is the one before it, if it has one."""
    changed_rows, last = logits.clone(), inputs.cu_num_rows[1:].long() - 1
    before = torch.maximum(last - 1, inputs.cu_num_rows[:-1].long())
    changed_rows[last] = changed_rows[before]
    return changed_rows


FIRST: dict[str, Any] = {}
"""A view that was kept, although vLLM takes turns between views and slots get other requests."""

INPUTS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {  # Any: tensors
    "slots are rows of the batch": ("slots", lambda _, inputs: torch.arange(inputs.batch_size, dtype=torch.int32)),
    "parameters of the first step": (
        "parameters.temperature", lambda now, _: FIRST.setdefault("temperature", now.clone())
    ),
    "bias is not read": ("edits.bias_counts edits.bias_token_ids edits.bias_values", not_read),
    "biases of the neighbour": ("edits.bias_values", of_the_neighbour),
    "allowed ids are not read": ("edits.allowed_counts edits.allowed_token_ids", not_read),
    "minimum tokens are not read": ("edits.stop_counts edits.stop_token_ids edits.min_lengths", not_read),
    "bad words are not read": ("edits.bad_words", not_read),
    "bad words see the prompt": ("edits.bad_words.starts", lambda starts, _: starts * 0),
    "counts of the neighbour": ("penalties.output_counts", of_the_neighbour),
    "prompts of the neighbour": ("penalties.prompt_mask", of_the_neighbour),
    "presence is frequency": ("penalties.presence", lambda _, inputs: inputs.penalties.frequency),
    "top-k is not read": ("parameters.top_k", not_read),
    "top-p is not read": ("parameters.top_p", not_read),
    "min-p is not read": ("parameters.min_p", not_read),
    "temperature twice": ("parameters.temperature", lambda temperature, _: temperature**2),
    "greedy requests are random": ("parameters.temperature", lambda one, _: one.masked_fill(one == 0, 1.0)),
    "last row is the one before": ("logits", last_rows_of),
    "drafts are one row late": ("draft_token_ids", lambda ids, _: ids.roll(1)),
    "positions are the model's": ("positions", lambda positions, _: positions - 1),
    "seeds are rows of the batch": (
        "seeds", lambda seeds, inputs: seeds.scatter(0, inputs.slots.long(), torch.arange(inputs.batch_size))
    ),
    "the model's logits are scaled": ("logits", lambda logits, _: logits.mul_(2)),
}  # fmt: skip


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("name", INPUTS)
def test_mutant_of_the_inputs_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FIRST.clear()
    change_inputs(monkeypatch, *INPUTS[name])
    assert differences(*FIRST_STEPS, TRACE)


def always_left_to_vllm(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_step, "MOST_EDITS", -1)


def changed_verify(patch: pytest.MonkeyPatch, change: Any) -> None:  # Any: from a tuple of tensors to another
    verify = _step.verify
    patch.setattr(_step, "verify", lambda *args, **options: change(verify(*args, **options)))


def invalid_drafts_are_accepted(patch: pytest.MonkeyPatch) -> None:
    verify = _step.verify
    patch.setattr(_step, "verify", lambda *args: verify(*args[:-1], args[4]))


def output_is_the_plans_own(patch: pytest.MonkeyPatch) -> None:
    kept = torch.zeros(v2_server.NUM_SLOTS, v2_server.MOST_DRAFTS + 1, dtype=torch.int64)
    changed_verify(patch, lambda found: (found[0], kept[: len(found[1])].copy_(found[1]), found[2]))


def counts_are_int64(patch: pytest.MonkeyPatch) -> None:
    changed_verify(patch, lambda found: (*found[:2], found[2].long()))


def one_token_less(patch: pytest.MonkeyPatch) -> None:
    changed_verify(patch, lambda found: (*found[:2], found[2].sub(1).clamp(min=1)))


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    "fault",
    [always_left_to_vllm, invalid_drafts_are_accepted, output_is_the_plans_own, counts_are_int64, one_token_less],
    ids=lambda fault: fault.__name__.replace("_", " "),
)
def test_mutant_is_caught(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert differences(*FIRST_STEPS, TRACE)


def test_bad_words_that_see_another_text_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the mixed steps few requests have bad words that begin with the end of their output; here all have."""
    monkeypatch.setattr(_validated, "check", lambda *_: None)
    monkeypatch.setattr(v2_server, "some_params", forbidding_what_follows)
    traces = [v2_server.Trace(seed, 1) for seed in range(8)]
    assert differences(*traces) == []
    change_inputs(monkeypatch, "edits.bad_words.text", of_the_neighbour)
    assert differences(*traces)


def test_fallback_that_is_forgotten_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the mixed steps few requests have a thinking budget, which ours leaves to vLLM."""
    monkeypatch.setattr(_validated, "check", lambda *_: None)
    monkeypatch.setattr(v2_server, "some_params", lambda *_: v2_server.SamplingParams(thinking_token_budget=3))
    assert differences(TRACE) == []
    monkeypatch.setattr(_step, "require_neutral", lambda *_, **__: None)
    assert differences(TRACE)


def forbidding_what_follows(rng: Any, tokens: Any, vocab_size: int) -> Any:  # Any: vLLM's SamplingParams
    params = v2_server.SamplingParams(temperature=1.0)
    params._bad_words_token_ids = [[tokens[-1], token_id] for token_id in range(8)]
    return params


def test_draws_that_are_skewed_are_caught_by_their_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows agree, and the order of the batch does not matter: nothing else sees it. vLLM's draws are not needed."""
    fair = pytorch.philox_uniforms

    def skewed(*arguments: Any) -> Any:  # Any: tensors
        accepting, drawing = fair(*arguments)
        return accepting, drawing**2

    monkeypatch.setattr(v2_steps, "run_upstream", v2_steps.run_ours)
    monkeypatch.setattr(v2_server, "some_params", lambda *_: v2_server.SamplingParams(temperature=1.0))
    assert v2_steps.compare([LONG])["differences"] == []
    monkeypatch.setattr(pytorch, "philox_uniforms", skewed)
    found = v2_steps.compare([LONG])["differences"]
    assert {text.partition(" follow")[0] for text in found} == {"tokens of ours do not", "tokens of theirs do not"}


LONG = v2_server.Trace(5, 150, speculative=False)


@pytest.mark.parametrize(
    ("least", "top_p", "kind"),
    [(-200.0, 1.0, "zeros"), (-20.0, 1.0, "kept sets differ"), (-200.0, 0.5, "kept sets differ")],
)
def test_tokens_that_only_ours_keeps_have_no_probability(least: float, top_p: float, kind: str) -> None:
    ours = torch.tensor([0.0, -1.0, least])
    params = v2_server.SamplingParams(top_p=top_p)
    assert v2_steps.compare_rows(ours.masked_fill(ours == least, -torch.inf), ours, params) == kind
    assert v2_steps.compare_rows(ours, ours.masked_fill(ours == least, -torch.inf), params) == "kept sets differ"


# Nothing is copied.


def test_states_are_read_where_vllm_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    server = v2_server.Server(v2_server.Trace(0, 1, probabilistic=True))
    parts = next(parts for parts in iter(server.schedule, None) if any(part.drafts for part in parts))
    for part in parts:
        part.request.params.thinking_token_budget = None
    server.sampler.thinking_budget_state.use_thinking_budget[:] = False
    seen: list[StepInputs] = []

    def look(inputs: StepInputs) -> StepInputs:
        seen.append(inputs)
        return inputs

    monkeypatch.setattr(_step_states, "use_of", lambda *_: _step_states.Use(True, True, True, 1))
    monkeypatch.setattr(_step, "use_of", _step_states.use_of)
    changed_inputs(monkeypatch, look)
    with v2_steps.plugin():
        server.step(parts)
    inputs, sampler = seen[0], server.sampler
    lists, penalties, words = sampler.logits_processors
    same = [
        (inputs.logits, server.logits),
        (inputs.seeds, sampler.sampling_states.seeds.gpu),
        (inputs.parameters.temperature, sampler.sampling_states.temperature.gpu),
        (inputs.draft_logits, server.draft_logits),
        # Its drafter divides by it, and so does vLLM.
        (inputs.draft_temperature, sampler.sampling_states.temperature.gpu),
        (inputs.parameters.top_p, sampler.sampling_states.top_p.gpu),
        (inputs.penalties.output_counts, penalties.output_bin_counts),
        (inputs.penalties.prompt_mask, penalties.prompt_bin_mask),
        (inputs.edits.bias_values, lists.logit_bias.gpu),
        (inputs.edits.bad_words.text, server.states.all_token_ids.gpu),
        (inputs.edits.bad_words.word_ids, words.bad_word_token_ids.gpu),
    ]
    assert all(ours is not None and ours.data_ptr() == theirs.data_ptr() for ours, theirs in same)


# Draft logits.


MANY = [v2_server.Trace(seed, 100, num_slots=12, vocab_size=32, probabilistic=True) for seed in range(3)]


DRAFT_LOGITS: dict[str, Callable[[Any, Any], Any]] = {  # Any: Tensor [num_slots, max_spec_len, vocab_size]
    "of the neighbour's slot": of_the_neighbour,
    "of the next position": lambda rows, _: rows.roll(1, 1),
    "by rows of the batch": lambda rows, inputs: rows[inputs.slots.argsort()[: len(rows)]],
    "flat": lambda rows, _: torch.zeros_like(rows),
}


def of_our_draws(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What differs in many random requests, by ours alone: vLLM's own draws take minutes."""
    monkeypatch.setattr(v2_steps, "run_upstream", v2_steps.run_ours)
    monkeypatch.setattr(v2_server, "some_params", lambda *_: v2_server.SamplingParams(temperature=2.0))
    return v2_steps.compare(MANY)["differences"]


def test_tokens_behind_draft_logits_follow_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_our_draws(monkeypatch) == []


@pytest.mark.parametrize("name", DRAFT_LOGITS)
def test_wrong_draft_logits_are_caught_by_the_distribution(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change_inputs(monkeypatch, "draft_logits", DRAFT_LOGITS[name])
    assert of_our_draws(monkeypatch)


# On a GPU.


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Any:  # Any: vLLM's class of buffers
    """vLLM's buffers that are copied to a device, which is the CPU here."""
    buffers = v2_server.vllm_module("worker.gpu.buffer_utils")
    monkeypatch.setattr(buffers, "is_uva_available", buffers.is_uva_available)  # restored behind the test
    monkeypatch.setattr(sys.modules["vllm.platforms"].current_platform, "device_type", "cpu")
    v2_device.copy_buffers()
    return buffers.NonUvaBuffer


@pytest.mark.usefixtures("known")
def test_steps_agree_on_buffers_that_are_copied(copied: Any) -> None:
    server = v2_server.Server(TRACE)
    (buffer, *_) = server.sampler.sampling_states.temperature.pool._uva_bufs
    assert isinstance(buffer, copied)
    assert buffer.uva().data_ptr() != buffer.cpu.data_ptr()
    assert differences(TRACE) == []


@pytest.mark.usefixtures("known")
def test_buffer_that_is_not_copied_is_caught(copied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot's second request then has the parameters of its first."""

    def stale(buffer: Any, n: int | None = None) -> Any:  # Any: vLLM's buffer; Tensor [n, ...] any
        return buffer._uva[:n] if buffer._uva.any() else buffer._uva.copy_(buffer.cpu)[:n]

    monkeypatch.setattr(copied, "uva", stale)
    assert differences(*[v2_server.Trace(seed, 8) for seed in range(4)])


def part_of(**params: Any) -> v2_server.Part:  # Any: vLLM's parameters
    """A request with the output 3, 3 and two rows: 1, 2, ... 8, and 3 is drafted again."""
    request = v2_server.Request("r", 1, [0, 3, 3], v2_server.SamplingParams(**params), 3, 1)
    return v2_server.Part(request, (3,), torch.arange(1.0, 9.0).repeat(2, 1), (False,))


def moved(row: Any, ulps: int) -> Any:  # Any: Tensor [vocab_size] float32
    """The last number of a row, so many float32 numbers further."""
    changed = row.clone()
    changed.view(torch.int32)[-1] += ulps
    return changed


@pytest.mark.parametrize(
    ("params", "ulps", "kind"),
    [
        ({"temperature": 0.7}, 2, "rounding"),
        ({"temperature": 0.7}, 3, "processed logits differ"),
        ({"temperature": 1.0}, 1, "processed logits differ"),
        ({"temperature": 0.0, "presence_penalty": 1.5}, 1, "processed logits differ"),
        ({"temperature": 1.0, "frequency_penalty": 0.1}, 8, "rounding"),
        ({"temperature": 1.0, "frequency_penalty": 0.1}, 40, "processed logits differ"),
        ({"temperature": 0.7, "repetition_penalty": 1.1}, 30, "processed logits differ"),
    ],
)
def test_rounding_of_compiled_kernels_has_a_bound(params: dict[str, float], ulps: int, kind: str) -> None:
    part = part_of(**params)
    ours, leeway = part.logits[0], v2_rows.leeway_of(part, 0)
    assert v2_rows.compare_rows(moved(ours, ulps), ours, part.request.params, leeway) == kind
    assert v2_rows.compare_rows(moved(ours, ulps), ours, part.request.params) == "processed logits differ"


def test_reach_is_the_largest_number_on_the_way() -> None:
    """Of token 3: |4| * 2 + |-1.5| * 2 times, and a third time behind the draft; the presence; over the temperature."""
    part = part_of(temperature=0.5, repetition_penalty=0.5, frequency_penalty=-1.5, presence_penalty=1.0)
    first, second = (v2_rows.leeway_of(part, place).reach for place in (0, 1))
    assert (first[3], second[3], first[4]) == (24.0, 27.0, 20.0)


def test_rounding_does_not_hide_another_kept_set() -> None:
    part = part_of(temperature=0.7, top_p=0.5)
    ours, leeway = part.logits[0], v2_rows.leeway_of(part, 0)
    theirs = moved(ours, 1).masked_fill(ours == 7.0, -torch.inf)
    assert v2_rows.compare_rows(theirs, ours, part.request.params, leeway) == "kept sets differ"


def test_filters_that_search_may_miss_what_is_as_probable_as_the_last() -> None:
    part = part_of(temperature=1.0, top_p=0.9, top_k=5)
    near = torch.tensor([1.0, 0.5, 0.5 - 1e-6, -3.0])
    far = torch.tensor([1.0, 0.6, 0.5, -3.0])
    for ours, kind in ((near, "searched"), (far, "kept sets differ")):
        theirs = ours.masked_fill(torch.tensor([False, False, True, True]), -torch.inf)
        mine = ours.masked_fill(ours == -3.0, -torch.inf)
        leeway = v2_rows.leeway_of(part, 0, searched=True)
        assert v2_rows.compare_rows(theirs, mine, part.request.params, leeway) == kind
        assert v2_rows.compare_rows(theirs, mine, part.request.params) == "kept sets differ"


def test_interpreted_kernels_have_no_leeway(monkeypatch: pytest.MonkeyPatch) -> None:
    """One ulp in vLLM's rows is a difference here, and on a GPU where something is divided."""
    run = v2_steps.run_upstream

    def rounded(server: v2_server.Server, parts: Any) -> v2_steps.Ran:
        ran = run(server, parts)
        off = torch.nextafter(ran.processed, torch.tensor(torch.inf))
        return dataclasses.replace(ran, processed=torch.where(ran.processed.isfinite(), off, ran.processed))

    monkeypatch.setattr(v2_steps, "run_upstream", rounded)
    monkeypatch.setattr(v2_server, "some_params", lambda *_: v2_server.SamplingParams(temperature=0.7))
    trace = v2_server.Trace(7, 2)
    assert any("processed logits differ" in text for text in differences(trace))
    monkeypatch.setattr(v2_steps, "DEVICE", torch.device("cuda"))
    comparison = v2_steps.Comparison()
    with v2_steps.plugin():
        comparison.play(trace)
    assert comparison.differences == []
    assert comparison.counts["rounding"] == comparison.counts["rows"]
    assert comparison.rounding == 0.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--device", "cuda"], "too late: set FAIRDRAW_V2_DEVICE"), (["--filters", "triton"], "needs --device cuda")],
)
def test_devices_that_cannot_be(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        v2_steps.main(arguments)
    assert words in capsys.readouterr().err


def test_device_is_chosen_by_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(v2_device.VARIABLE, "cpu")
    v2_device.choose(["--steps", "5", "--device=cuda"])
    assert v2_device.chosen() == "cuda"
    monkeypatch.setenv(v2_device.VARIABLE, "tpu")
    with pytest.raises(ValueError, match="'tpu', but it must be one of"):
        v2_device.chosen()


# What ours does not give.


def left(change: Callable[[Any], object], *, drafts: bool = True, **arguments: Any) -> dict[str, int]:  # Any: vLLM's
    """Calls of a step after a change of the server, for which vLLM's own code is a stub."""
    server = v2_server.Server(v2_server.Trace(1, 1, speculative=drafts))
    parts = next(parts for parts in iter(server.schedule, None) if any(part.drafts for part in parts) is drafts)
    for part in parts:
        part.request.params.thinking_token_budget = None
    batch = server.input_batch(parts)
    change(server)
    slots, rows = batch.idx_mapping_np, int(batch.cu_num_logits_np[-1])
    common = (batch.idx_mapping, slots)
    logits = arguments.get("logits", torch.zeros(rows, v2_server.VOCAB_SIZE))
    expanded = (batch.expanded_idx_mapping, batch.expanded_local_pos, batch.seq_lens_cpu_upper_bound.numpy())
    ids, pos = batch.input_ids, batch.positions
    vllm_plugin.unpatch()
    if drafts:
        drafted = arguments.get("draft_logits", server.draft_logits)
        given = (logits, drafted, ids, pos, batch.cu_num_logits, *common, *expanded, ids)
        found = _step.verify(lambda: "theirs", server.verifier, *given)
    else:
        given = (logits, expanded[0], *common, pos, ids, *expanded[1:], arguments.get("return_logprobs", False))
        found = _step.sample(lambda: "theirs", server.sampler, *given)
    calls = vllm_plugin.calls()["step"]
    assert (found == "theirs") is ("ours" not in calls)
    return calls


class Subclass(v2_server.vllm_module("worker.gpu.sample.sampler").Sampler):  # type: ignore[misc]
    """As vLLM's sampler with watermarks."""


def of(path: str, value: Any) -> Callable[[Any], object]:  # Any: an attribute's
    """Set an attribute of the server's objects."""

    def change(server: Any) -> None:  # Any: Server
        *outer, name = path.split(".")
        for part in outer:
            server = getattr(server, part)
        setattr(server, name, value)

    return change


def fills(path: str, value: object) -> Callable[[Any], object]:
    def change(server: Any) -> None:  # Any: Server
        for part in path.split("."):
            server = getattr(server, part)
        server[:] = value

    return change


def with_lists(server: Any) -> None:  # Any: Server
    server.sampler.logits_processors[0].num_logit_bias.np[:] = 497


def with_grammars(server: Any) -> None:  # Any: Server
    server.sampler.logits_processors[0].restore_when_all_masked.np[:] = 1


def wants_processed(server: Any) -> None:  # Any: Server
    server.sampler.logprobs_mode = "processed_logprobs"
    server.sampler.sampling_states.num_logprobs[:] = 2


BOTH = {
    "a Subclass instead of vLLM's Sampler": of("sampler.__class__", Subclass),
    "custom logits processors": lambda server: server.sampler.logits_processors.append(SimpleNamespace()),
    "float64 noise": of("sampler.use_fp64_gumbel", True),
    "sampling masks": of("sampler.return_sampling_mask", True),
    "thinking budgets": fills("sampler.thinking_budget_state.use_thinking_budget", True),
    "minimum tokens with a grammar": with_grammars,
    "a request with more than 496 listed ids": with_lists,
    "processed log-probabilities": wants_processed,
}
VERIFYING = {
    "synthetic acceptance": of("verifier.synthetic_conditional_rates", torch.ones(5)),
    "block verification": of("verifier.use_block_verification", True),
    "FLy": of("verifier.fly_window_size", 2),
    "watermarks": of("verifier.watermark_key", 7),
}


@pytest.mark.parametrize("reason", [*BOTH, *VERIFYING])
def test_verification_is_left_to_vllm(reason: str) -> None:
    assert left({**BOTH, **VERIFYING}[reason]) == {reason: 1}


@pytest.mark.parametrize("reason", BOTH)
def test_sampling_is_left_to_vllm(reason: str) -> None:
    assert left(BOTH[reason], drafts=False, return_logprobs=True) == {reason: 1}


@pytest.mark.parametrize(
    ("reason", "arguments"),
    [
        ("draft logits of a smaller vocabulary", {"draft_logits": torch.zeros(6, 5, 47)}),
        ("arguments that ours does not take", {"draft_logits": torch.zeros(6, 5, 48, dtype=torch.float64)}),
        ("logits of another width than the sampler's vocabulary", {"logits": torch.zeros(9, 50)}),
        ("arguments that ours does not take", {"logits": torch.zeros(9, 48, dtype=torch.float64)}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arguments_are_left_to_vllm(reason: str, arguments: Any) -> None:
    assert left(lambda _: None, **arguments) == {reason: 1}


@pytest.mark.parametrize("width", [48, 50])
def test_draft_logits_are_served(width: int) -> None:
    """Of a wider drafter the ids behind the vocabulary are not read."""
    rows = torch.full((6, 5, width), torch.nan)
    rows[..., :48] = 0
    assert left(lambda _: None, draft_logits=rows) == {"ours": 1}


@pytest.mark.parametrize("drafts", [True, False])
def test_neutral_settings_are_served(drafts: bool) -> None:
    """What is on, and has no effect on a step: no reason to leave it."""

    def change(server: Any) -> None:  # Any: Server
        server.sampler.logprobs_mode = "processed_logits"
        server.sampler.sampling_states.num_logprobs[:] = -1
        server.sampler.thinking_budget_state.use_thinking_budget[:] = False

    assert left(change, drafts=drafts) == {"ours": 1}


def test_trace_replay_is_vllms_own_after_our_tokens() -> None:
    """`Sampler.__call__` overwrites what `sample` returned, so ours serves it."""
    server = v2_server.Server(v2_server.Trace(1, 1, speculative=False))
    parts = server.schedule()
    replay = SimpleNamespace(apply_trace=lambda sampled, idx_mapping: sampled.fill_(5))
    server.sampler.trace_replay_state = replay
    for part in parts:
        part.request.params.thinking_token_budget = None
    server.sampler.thinking_budget_state.use_thinking_budget[:] = False
    with v2_steps.plugin():
        found = server.step(parts)
        assert vllm_plugin.calls()["step"] == {"ours": 1}
    assert found.sampled_token_ids.tolist() == [[5]] * len(parts)


# On, off, refused.


def methods() -> tuple[Any, Any]:
    verifier = v2_server.vllm_module("worker.gpu.spec_decode.rejection_sampler").RejectionSampler
    return vars(verifier)["_verify"], vars(v2_server.vllm_module("worker.gpu.sample.sampler").Sampler)["sample"]


UPSTREAM = methods()


def test_it_is_logged_installed_once_a_v2_runner_is_made_and_removed(logged: pytest.LogCaptureFixture) -> None:
    with v2_steps.plugin():
        assert all(ours is not theirs for ours, theirs in zip(methods(), UPSTREAM, strict=True))
        _plugin._current[0].runner_v2_made()
    assert methods() == UPSTREAM
    about = [message for message in logged.messages if message.startswith("fairdraw: step ")]
    assert about == [
        f"fairdraw: step is on: vLLM {v2_server.RELEASE}, source of {len(HASHES)} functions as validated, patched "
        "RejectionSampler._verify, Sampler.sample. Tokens follow vLLM's distributions; they are not vLLM's bit for bit."
    ]


@pytest.mark.parametrize(("plugin", "step"), [("0", "1"), ("1", "0")])
def test_switches(plugin: str, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRDRAW_VLLM_PLUGIN", plugin)
    monkeypatch.setenv("FAIRDRAW_VLLM_STEP", step)
    vllm_plugin.register()
    for registration in _plugin._current:
        registration.runner_v2_made()
    assert "step" not in vllm_plugin.installed()
    assert methods() == UPSTREAM


def test_failing_installation_does_not_stop_the_runner(
    monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_plugin._Registration, "_install", lambda self, piece: 1 / 0)
    with pytest.raises(v2_steps.NotInstalledError), v2_steps.plugin():
        pass
    assert any(message.startswith("fairdraw: vLLM's own code stays in place") for message in logged.messages)
