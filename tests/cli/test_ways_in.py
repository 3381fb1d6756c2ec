"""Classes and Hypothesis' own lookup reach the same checks and batches as everything else."""

import pytest
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

import fairdraw
from fairdraw._run.loading import CannotStart, all_checks, load_sampler
from fairdraw.contracts import SpecDecodeBatch
from fairdraw.hypothesis_plugin import register

# Pytest's in-process runs forget modules that they import; torch does not survive being imported twice.
load_sampler("rejection/torch")


def test_class_has_a_test_for_each_check(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(
        """
        import fairdraw
        from fairdraw._oracles.rejection import verify

        class TestMine(fairdraw.SamplerTests):
            sampler = fairdraw.rejection_sampler(verify, name="mine")
            only = "properties"
        """
    )
    result = pytester.runpytest_inprocess(
        path, "-p", "fairdraw.pytest_plugin", "--fairdraw-profile", "smoke", "-k", "REJ101 or REJ102", "-v"
    )
    result.assert_outcomes(passed=2, deselected=len(all_checks("properties", "rejection")) - 2)
    result.stdout.fnmatch_lines(["*TestMine::test_check?mine-REJ101 token ids lie in the vocabulary? PASSED*"])


def test_class_without_a_sampler_is_refused_when_it_is_made() -> None:
    with pytest.raises(CannotStart, match="must have it"):
        type("TestNothing", (fairdraw.SamplerTests,), {"sampler": 3})


def test_hypothesis_draws_batches_by_their_type() -> None:
    register()
    try:
        strategy = st.from_type(SpecDecodeBatch)
        strategy.validate()
    except InvalidArgument as error:  # pragma: no cover
        pytest.fail(str(error))
    assert "spec_decode_batches" in repr(strategy)
