"""The words: capabilities with reasons, batches that select and print, noise for one call, samplers by duck typing."""

from typing import Any, cast

import pytest
import torch
from helpers import whole

from fairdraw._core.contracts import CONTRACTS
from fairdraw._run.loading import CannotStart, as_sampler
from fairdraw.contracts import (
    Capabilities,
    Capability,
    RejectionSampler,
    SeededNoise,
    SessionSampler,
    SpecDecodeBatch,
    rejection_sampler,
)
from fairdraw.strategies import DraftRecipe, RejectionCase, RequestRecipe

DRAFT = DraftRecipe("normal", "independent", "drawn")
CASE = RejectionCase(
    4, (RequestRecipe((DRAFT, DRAFT)), RequestRecipe(greedy=True), RequestRecipe((DRAFT,))), dense=True, synthetic=True
)


def same(one: SpecDecodeBatch, other: SpecDecodeBatch) -> bool:
    """Equal in everything that a sampler sees."""
    mine, theirs = one.tensors(), other.tensors()
    return (
        mine.keys() == theirs.keys()
        and all(torch.equal(mine[name], theirs[name]) for name in mine)
        and (one.num_draft_tokens, one.max_spec_len) == (other.num_draft_tokens, other.max_spec_len)
    )


# -- capabilities


def test_everything_is_open_by_default() -> None:
    assert all(capability in Capabilities() for capability in Capability)


def test_closed_capability_tells_why() -> None:
    can = Capabilities({Capability.GREEDY: "we only draw"})
    assert Capability.GREEDY not in can
    assert can.why_unsupported([Capability.RAGGED, Capability.GREEDY]) == "greedy is unsupported: we only draw"
    assert can.why_unsupported([Capability.RAGGED]) is None


def test_words_close_as_members_do() -> None:
    assert Capabilities({"greedy": "no"}) == Capabilities({Capability.GREEDY: "no"})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("unsupported", "message"),
    [
        (
            {"gready": "we only draw"},
            "Capabilities: unsupported='gready', but that is no capability. "
            f"Use one of: {', '.join(sorted(Capability))}.",
        ),
        ({"greedy": " "}, "Capabilities: unsupported['greedy']=' ', but it must say why. Give a reason."),
    ],
    ids=["unknown", "no reason"],
)
def test_wrong_closure_is_refused_by_name(unsupported: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=whole(message)):
        rejection_sampler(lambda batch, noise: batch.draft_token_ids, unsupported=unsupported)


# -- batch


def test_sizes_follow_from_the_tensors() -> None:
    batch = CASE.batch()
    assert (batch.batch_size, batch.num_tokens, batch.vocab_size) == (3, 3, 4)
    assert batch.is_greedy.tolist() == [False, True, False]
    assert [batch.token_slice(i) for i in range(3)] == [slice(0, 2), slice(2, 2), slice(2, 3)]


def test_target_probs_are_a_float32_softmax() -> None:
    batch = CASE.replace(dtype="bfloat16", layout="transposed").batch()
    assert torch.equal(batch.target_probs(), batch.target_logits.float().softmax(-1))
    assert batch.target_probs().is_contiguous()


def test_selecting_all_requests_changes_nothing() -> None:
    assert same(CASE.batch().select([0, 1, 2]), CASE.batch())


def test_selected_requests_keep_their_rows() -> None:
    batch, noise = CASE.batch(), CASE.noise()
    chosen, numbers = batch.select([2, 0, 2]), noise.select(batch, [2, 0, 2])
    assert chosen.num_draft_tokens == [1, 2, 1]
    assert chosen.cu_num_draft_tokens.tolist() == [1, 3, 4]
    rows = [2, 0, 1, 2]
    assert torch.equal(chosen.target_logits, batch.target_logits[rows])
    assert torch.equal(chosen.bonus_token_ids, batch.bonus_token_ids[[2, 0, 2]])
    assert torch.equal(numbers.uniforms, noise.uniforms[rows])
    assert torch.equal(numbers.exponentials, noise.exponentials[[2, 0, 2]])


def test_clone_has_memory_of_its_own() -> None:
    batch = CASE.batch()
    copy = batch.clone()
    batch.target_logits.fill_(0)
    assert same(copy, CASE.batch())
    assert repr(copy) == repr(batch)


def test_changed_batch_no_longer_prints_the_code_of_the_old_one() -> None:
    assert repr(CASE.batch()) == f"{CASE!r}.batch()"
    assert repr(CASE.batch().replace(max_spec_len=7)).startswith("SpecDecodeBatch(draft_token_ids=torch.tensor(")


def test_batch_without_origin_prints_as_code_that_builds_it() -> None:
    batch = CASE.batch().replace(max_spec_len=CASE.max_spec_len)
    again = eval(repr(batch), {"SpecDecodeBatch": SpecDecodeBatch, "torch": torch})
    assert same(again, batch)


def test_large_tensors_print_as_their_shape() -> None:
    batch = CASE.replace(vocab_size=100).batch().replace(max_spec_len=7)
    assert "target_logits=<torch.float32 [3, 100]>" in repr(batch)


# -- seeded noise


def test_generators_are_made_once_and_start_at_their_seed() -> None:
    noise = SeededNoise(0, {1: 5})
    assert noise.generators()[1] is noise.generators()[1]
    assert noise.generators()[1].initial_seed() == 5
    assert noise.generators().keys() == {1}


def test_noise_is_equal_by_its_seeds() -> None:
    used, fresh = SeededNoise(0, {1: 5}), SeededNoise(0, {1: 5})
    torch.rand(1, generator=used.generators()[1])
    assert used == fresh


class Duck:
    """Somebody's sampler, which has never heard of fairdraw."""

    name, device, capabilities = "duck", "cpu", Capabilities()

    def verify(self, batch: Any, noise: Any) -> Any:  # Any: a third party's
        return batch.bonus_token_ids


# -- samplers


def test_any_object_with_the_attributes_is_a_sampler() -> None:
    assert isinstance(Duck(), RejectionSampler)
    assert not isinstance(object(), RejectionSampler)


@pytest.mark.parametrize("contract", CONTRACTS)
def test_adapter_of_another_contract_is_refused(contract: str) -> None:
    def four(a: Any, b: Any, c: Any, d: Any) -> Any: ...  # Any: nobody calls it

    others: list[object] = [SessionSampler("other", four, contract), rejection_sampler(cast("Any", four)), Duck]
    others += [type("Other", (Duck,), {"contract": contract, CONTRACTS[contract].method: None})()]
    for other in others:
        with pytest.raises(CannotStart, match=r"which has no \w+ that takes \("):
            as_sampler(other)


def test_wrapped_function_is_a_sampler_with_its_name() -> None:
    def mine(batch: SpecDecodeBatch, noise: object) -> torch.Tensor:  # [batch_size, max_spec_len + 1] int32
        return batch.bonus_token_ids

    sampler = rejection_sampler(mine, unsupported={"greedy": "we only draw"}, slow=True)
    assert isinstance(sampler, RejectionSampler)
    assert (sampler.name, sampler.device, sampler.capabilities.slow) == ("mine", "cpu", True)
    assert Capability.GREEDY not in sampler.capabilities
    assert rejection_sampler(mine, name="other").name == "other"
