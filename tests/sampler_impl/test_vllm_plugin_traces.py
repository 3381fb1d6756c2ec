"""vLLM's own sampler objects with the plugin: the same bits, calls served by ours, and fallbacks to vLLM."""

import os
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from fairdraw.adapters._runtime import quiet_floats, quiet_imports
from fairdraw.sampler_impl import vllm_plugin
from fairdraw.sampler_impl.penalties import Penalties
from fairdraw.sampler_impl.vllm_plugin import _penalties, _penalties_tensor, _rows, _thinking_budget
from fairdraw.sampler_impl.vllm_plugin._pieces import PIECES

with quiet_imports():
    pytest.importorskip("vllm", reason="vLLM is not installed: make vllm")
    from vllm.v1.worker.gpu_input_batch import maybe_create_thinking_budget_state_holder as HOLDER

    from fairdraw_engines._vllm_validation import soak, traces

torch = traces.torch
if traces.vllm.__version__ != "0.22.0":
    pytest.skip("tools/record.py plugin validates other releases", allow_module_level=True)

NAMES = [piece.name for piece in PIECES if piece.runner == "V1"]
KINDS = [(s, a, t) for s in (False, True) for a in (False, True) for t in (False, True)]
TRACES = [traces.EventTrace(seed, 12, *kind) for kind in KINDS for seed in (0, 2)]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    soak.without_pinned_memory()
    before = dict(os.environ)
    yield
    vllm_plugin.unpatch()
    os.environ.clear()
    os.environ.update(before)


@cache
def own_trace(trace: Any) -> list[Any]:  # Any: of the script
    """With vLLM's code alone."""
    return soak.play_with(trace)[0]


@pytest.mark.parametrize("piece", [*NAMES, "all"])
def test_trace_with_the_plugin_is_bitwise_the_same(piece: str) -> None:
    """Logits, tokens and generators of 192 steps, or of 96 for a piece alone, all served by ours."""
    pieces = NAMES if piece == "all" else [piece]
    served: dict[str, int] = {}
    for trace in TRACES if piece == "all" else TRACES[::2]:
        records, calls, _ = soak.play_with(trace, *pieces)
        assert soak.first_difference(own_trace(trace), records) == ""
        for name, counts in calls.items():
            served[name] = served.get(name, 0) + counts.get("ours", 0)
            if name != "penalties tensor":
                assert set(counts) <= {"ours"}
    expected = [name for name in pieces if not (piece == "all" and name == "penalties tensor")]
    assert {name for name, count in served.items() if count > 20} == set(expected)


def test_traces_force_tokens_and_read_bad_words() -> None:
    """Without this, event traces in which nothing happens would pass."""
    servers = [traces.Server(trace) for trace in TRACES]
    with quiet_floats():
        for server in servers:
            server.play()
    assert sum(server.num_forced for server in servers) > 10
    assert any(r.state.sampling_params.bad_words_token_ids for s in servers for r in s.scripts.values())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: " ".join(map(str, kind)))
def test_plugin_may_be_installed_and_removed_within_a_trace(kind: tuple[bool, bool, bool]) -> None:
    """A batch that is joined midway is left to vLLM until it has turned over; vLLM reads again what it missed."""
    trace = traces.EventTrace(0, 30, *kind)  # one-token markers: vLLM begins longer ones anew
    server = traces.Server(trace)
    with quiet_floats():
        for until in (8, 16, 24):
            with soak.plugin(*(NAMES if until != 16 else [])):
                records = server.play(until)
        records = server.play()
    assert soak.first_difference(own_trace(trace), records) == ""


def counts_are_not_updated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Penalties, "update", lambda self, output_token_ids: None)


def rows_are_not_followed(patch: pytest.MonkeyPatch) -> None:
    follow = _penalties.follow

    def only_whole(batch: Any, changes: Any) -> None:
        if changes.is_whole:
            follow(batch, changes)

    patch.setattr(_penalties, "follow", only_whole)


def drafts_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_penalties, "CombinedRows", SimpleNamespace)
    patch.setattr(_penalties, "live_rows", lambda rows: getattr(rows, "output_token_ids", rows))


def nothing_is_forced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        _thinking_budget,
        "apply_to_logits",
        lambda upstream, holder, logits, predict_bonus_token, spec_token_ids: logits,
    )


def buffer_is_trusted_whatever_happens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_penalties_tensor._Buffer, "look", lambda self, batch: None)
    patch.setattr("fairdraw.sampler_impl._scanners.padded_outputs._repair", lambda row, output_token_ids: None)


def rows_are_combined_without_drafts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_rows.CombinedRows, "rows", property(lambda self: self.output_token_ids))


@pytest.mark.parametrize(
    "fault",
    [
        counts_are_not_updated, rows_are_not_followed, drafts_are_forgotten, nothing_is_forced,
        buffer_is_trusted_whatever_happens, rows_are_combined_without_drafts,
    ],
    ids=lambda fault: fault.__name__.replace("_", " "),
)  # fmt: skip
def test_mutant_is_caught(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fault(patch)
        for trace in (traces.EventTrace(seed, 30, *kind) for seed in (0, 1) for kind in KINDS[::-1]):  # drafts first
            for pieces in (["penalties tensor"], ["penalties", "thinking budget"]):
                try:
                    records = soak.play_with(trace, *pieces)[0]
                except (AssertionError, IndexError, RuntimeError):
                    return  # vLLM itself failed
                if soak.first_difference(own_trace(trace), records):
                    return
    pytest.fail("both runs were the same")


# Fallbacks to vLLM.


def penalised_server() -> Any:  # Any: of the script
    for seed in range(20):
        server = traces.Server(traces.EventTrace(seed, 12, speculative=False, asynchronous=False, thinking=False))
        server.play()
        if not server.batch.sampling_metadata.no_penalties:
            return server
    raise AssertionError("no trace of 12 steps ends with a penalised request")


def logits_of(server: Any) -> Any:  # Any: Tensor [num_rows, vocab_size] float32
    return torch.arange(server.batch.num_reqs * traces.VOCAB_SIZE, dtype=torch.float32).reshape(-1, traces.VOCAB_SIZE)


def penalise(server: Any, rows: Any = None) -> Any:  # Any: Tensor [num_rows, vocab_size] float32
    metadata = server.batch.sampling_metadata
    return traces.Sampler.apply_penalties(logits_of(server), metadata, rows or metadata.output_token_ids)


def test_rows_that_are_not_the_batchs_own_are_left_to_vllm() -> None:
    with soak.plugin(*NAMES):
        server = penalised_server()
        served = vllm_plugin.calls()["penalties"]
        copies = [list(row) for row in server.batch.req_output_token_ids]
        assert torch.equal(penalise(server, copies), penalise(server))
        assert vllm_plugin.calls()["penalties"] == {"ours": served["ours"] + 1, "rows that are not the metadata's": 1}


def test_list_that_was_replaced_without_a_report_is_left_to_vllm() -> None:
    with soak.plugin("penalties"):
        server = penalised_server()
        ours = penalise(server)
        lists = server.batch.req_output_token_ids
        lists[:] = [list(row) for row in lists]
        assert torch.equal(penalise(server), ours)
        assert vllm_plugin.calls()["penalties"]["rows that ours does not take"] == 1


def test_batch_from_before_the_plugin_is_left_to_vllm() -> None:
    with quiet_floats():
        server = penalised_server()
        expected = penalise(server)
    with soak.plugin("penalties"):
        assert torch.equal(penalise(server), expected)
        reason = "a batch that was not followed from its beginning"
        assert vllm_plugin.calls() == {"penalties": {reason: 1}}


@pytest.mark.parametrize(
    "options",
    [
        {"synthetic_mode": True, "synthetic_conditional_rates": torch.tensor([0.5, 0.5])},
        {"use_fp64_gumbel": True},
        {"fly_window_size": 2},
    ],
    ids=["synthetic", "float64 noise", "an option of a later release"],
)
def test_foreign_option_is_left_to_vllm(options: dict[str, Any]) -> None:
    from fairdraw.sampler_impl.vllm_plugin._rejection import rejection_sample

    vllm_plugin.unpatch()
    arguments = tuple(range(8))
    assert rejection_sample(lambda: "theirs", *arguments, **options) == "theirs"


def test_options_that_are_off_are_served_by_ours() -> None:
    """vLLM 0.33.0 always passes those of FLy, also where it is off."""
    from fairdraw.sampler_impl.vllm_plugin._rejection import rejection_sample

    vllm_plugin.unpatch()
    metadata = SimpleNamespace(all_greedy=True, all_random=False, temperature=None, generators={})
    ids, logits = torch.zeros(1, dtype=torch.int32), torch.zeros(1, 4)
    arguments = (ids, [1], 1, ids + 1, None, logits, ids[:, None], metadata)
    off = {"fly_window_size": None, "fly_entropy_threshold": None, "fly_entropy_top_k": 3, "use_fp64_gumbel": False}
    assert rejection_sample(lambda: "theirs", *arguments, **off).tolist() == [[0, 0]]
    assert vllm_plugin.calls() == {"rejection": {"ours": 1}}


def test_arguments_that_ours_refuses_are_left_to_vllm_before_anything_was_drawn() -> None:
    from fairdraw.sampler_impl.vllm_plugin._rejection import rejection_sample

    before = torch.get_rng_state()
    metadata = SimpleNamespace(all_greedy=False, all_random=True, temperature=None, generators={})
    ids, logits = torch.zeros(1, dtype=torch.int32), torch.zeros(1, 4, dtype=torch.int64)
    arguments = (ids, [1], 1, ids + 1, None, logits, ids[:, None], metadata)
    assert rejection_sample(lambda: "theirs", *arguments) == "theirs"
    assert torch.equal(torch.get_rng_state(), before)


def thinking_holder(budget: int) -> tuple[Any, list[int]]:
    """vLLM's holder with one request inside a section, and its live output."""
    config = SimpleNamespace(reasoning_start_token_ids=[1], reasoning_end_token_ids=[3])
    holder, output = HOLDER(config, 4, 0, traces.CPU, False), []
    params = SimpleNamespace(thinking_token_budget=budget)
    holder.sync_batch(SimpleNamespace(batch_size=1, removed=[], added=[(0, params, [1], output)], moved=[]))
    return holder, output


def forced(holder: Any, rows: list[list[int]]) -> list[list[int]]:
    holder.update_state(rows, [])
    return holder.apply_to_logits(torch.zeros(1, 8), False, []).nonzero().tolist()


def test_thinking_rows_that_ours_does_not_take_are_decided_by_vllm_and_taken_back_afterwards() -> None:
    with soak.plugin("thinking budget"):
        holder, output = thinking_holder(budget=2)
        assert forced(holder, [output]) == []
        output += [5, 6]
        assert forced(holder, [list(output)]) == [[0, 3]]
        assert forced(holder, [output]) == [[0, 3]]
        output += [3, 5]
        assert forced(holder, [output]) == []
        calls = vllm_plugin.calls()["thinking budget"]
        assert calls == {"ours": 3, "rows that ours does not take": 1}


def test_budget_that_ours_does_not_take_is_decided_by_vllm() -> None:
    with soak.plugin("thinking budget"):
        holder, output = thinking_holder(budget=-5)
        output += [5]
        assert forced(holder, [output]) == [[0, 3]]
        assert vllm_plugin.calls()["thinking budget"] == {
            "a request or markers that ours does not take": 1,
            "a batch that was not followed from its beginning": 1,
        }


def test_unexpected_error_does_not_stop_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Penalties, update: Any) -> None:
        raise RuntimeError("out of memory")

    trace = traces.EventTrace(0, 12, speculative=False, asynchronous=False, thinking=False)
    with monkeypatch.context() as patch:
        patch.setattr(Penalties, "sync_batch", fails)
        records, calls, _ = soak.play_with(trace, "penalties")
    assert soak.first_difference(own_trace(trace), records) == ""
    assert "ours" not in calls["penalties"]
    assert calls["penalties"]["a request that ours does not take"] > 0


def test_logits_too_narrow_for_the_marker_are_decided_by_vllm() -> None:
    with soak.plugin("thinking budget"):
        holder, output = thinking_holder(budget=0)
        output += [5]
        holder.update_state([output], [])
        with pytest.raises(IndexError):
            holder.apply_to_logits(torch.zeros(1, 2), False, [])
        assert vllm_plugin.calls()["thinking budget"] == {"logits that ours does not take": 1}


def test_budget_of_minus_one_is_off() -> None:
    with soak.plugin("thinking budget"):
        holder, output = thinking_holder(budget=-1)
        output += [5] * 9
        assert forced(holder, [output]) == []


def test_draft_rows_are_not_copied_unless_somebody_reads_them() -> None:
    made = []

    def upstream() -> Any:
        made.append(1)
        return [[1, 3], [2]]

    rows = _rows.combine(upstream, [[1], [2]], [[3], []])
    assert _rows.live_rows(rows) == [[1], [2]]
    assert made == []
    assert (len(rows), rows[0], list(rows)) == (2, [1, 3], [[1, 3], [2]])
    assert made == [1]
