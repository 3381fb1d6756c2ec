"""The first report is the diagnosis; consequences of a fault, and what is unsupported, come after it."""

import dataclasses

import pytest
from helpers import CHECKS

from fairdraw._core.checks import Stage
from fairdraw._core.failures import FailureReport
from fairdraw._report.causes import SELDOM, find_causes
from fairdraw._run.runner import CheckRecord, Status


def record(code: str, status: Status = "failed", *, effect: str = "", needs: tuple[str, ...] = ()) -> CheckRecord:
    """A record with a report unless it passed; an effect makes it an exception."""
    check = CHECKS[code]
    status = "error" if effect else status
    about = {"needs": needs, "stage": check.stage, "depends_on": check.depends_on}
    plain = CheckRecord(code, code, check.suite, "rejection", status, **about)
    if plain.status not in ("failed", "error"):
        return plain
    return dataclasses.replace(
        plain, failure_report=FailureReport(code, "title", "meaning", effect or f"broken {code}")
    )


def reported_codes(*records: CheckRecord) -> list[str]:
    """The codes that are reported, in their order."""
    return [cause.reported.code for cause in find_causes(records)]


def test_stage_and_dependencies_are_fields_of_every_check() -> None:
    distributions = {check.code for check in CHECKS.values() if check.suite == "statistical"}
    assert {CHECKS[code].stage for code in distributions}.isdisjoint({Stage.SHAPE, Stage.PROPERTY})
    assert set(CHECKS) >= {code for check in CHECKS.values() for code in check.depends_on}
    shape = {check.code for check in CHECKS.values() if check.stage == Stage.SHAPE and check.contract != "server"}
    assert shape == {"LPR101", "REJ101", "REJ102", "REJ103", "REJ104", "REJ105", "SAM101"}


def test_acceptance_leads_before_recovery_and_recovery_before_nets() -> None:
    distributions = [record(code) for code in ("DIST101", "DIST102", "DIST203", "DIST213")]
    assert reported_codes(*distributions)[0] == "DIST203"
    assert reported_codes(*distributions, record("DIST104"))[:2] == ["DIST104", "DIST203"]


@pytest.mark.parametrize(
    ("properties", "distributions", "first"),
    [
        (["REJ112"], ["DIST101", "DIST102", "DIST203"], "DIST203"),
        (["REJ112"], ["DIST101", "DIST203"], "REJ112"),
        (["REJ107", "REJ112"], ["DIST101", "DIST102", "DIST203"], "REJ107"),
        (["REJ101"], ["DIST101", "DIST102", "DIST203"], "REJ101"),
    ],
    ids=["one beside three distributions", "one beside two", "two properties", "the shape of the answer"],
)
def test_lone_property_waits_unless_it_is_about_the_shape(
    properties: list[str], distributions: list[str], first: str
) -> None:
    assert reported_codes(*(record(code) for code in [*distributions, *properties]))[0] == first


def test_distributions_of_pairs_wait_if_the_distribution_of_single_rows_is_broken() -> None:
    pairs, net = record("DIST322"), record("DIST101")
    (cause, _) = find_causes([net, pairs, record("DIST102", "passed")])
    assert (cause.reported.code, cause.rests_on) == ("DIST322", ())
    last = find_causes([net, pairs, record("DIST102")])[-1]
    assert (last.reported.code, last.rests_on) == ("DIST322", ("DIST102",))


def test_supports_of_filters_wait_if_the_temperature_is_wrong() -> None:
    assert reported_codes(record("SAM102"), record("SAM126")) == ["SAM126", "SAM102"]
    assert reported_codes(record("SAM102"), record("SAM141"), record("SAM126", "passed")) == ["SAM102", "SAM141"]


def test_checks_that_need_a_missing_capability_are_reported_once_and_last() -> None:
    greedy = [record(code, needs=("greedy",)) for code in ("REJ201", "REJ202", "REJ205")]
    kept = [record("REJ211", "passed", needs=("greedy",)), record("REJ101", "passed"), record("DIST101", "passed")]
    nan = record("REJ116", needs=("nan-logits",))
    causes = find_causes([*greedy, *kept, nan])
    assert [cause.reported.code for cause in causes] == ["REJ116", "REJ201"]
    assert (causes[1].missing, causes[1].num_needing, len(causes[1].records)) == ("greedy", 4, 3)


@pytest.mark.parametrize(
    ("failed", "passed"),
    [
        ({"SAM111": ("top-p",), "DIST771": ("large-vocab",)}, {"SAM101": (), "DIST701": ()}),
        ({"SAM111": (), "SAM188": ("strided-inputs",)}, {"SAM101": ()}),
        (
            {"SRV161": ("stop-strings", "greedy"), "SRV165": ("stop-strings", "greedy")},
            {"SRV173": ("stop-strings",), "SRV122": ("greedy",)},
        ),
        ({"SRV161": ("stop-strings", "greedy")}, {"SRV122": ("greedy",), "SRV101": ()}),
        ({"DIST771": ("large-vocab",)}, {"SAM101": ()}),
    ],
    ids=["top-p beside vocabularies", "anything else", "all are about stop strings", "stop strings alone", "no twin"],
)
def test_capability_is_advised_only_if_nothing_else_explains_the_failures(
    failed: dict[str, tuple[str, ...]], passed: dict[str, tuple[str, ...]]
) -> None:
    """A fault must not hide behind a declaration."""
    records = [record(code, needs=needs) for code, needs in failed.items()]
    records += [record(code, "passed", needs=needs) for code, needs in passed.items()]
    assert [cause.missing for cause in find_causes(records)] == [""] * len(failed)


def test_capability_is_not_advised_where_the_twin_had_less_power() -> None:
    twin = record("SAM101", "passed")
    broken = dataclasses.replace(record("SAM188", needs=("strided-inputs",)), cases=20)
    advised = [find_causes([broken, dataclasses.replace(twin, cases=cases)])[0].missing for cases in (19, 20)]
    assert advised == ["", "strided-inputs"]


def test_capability_that_mostly_works_is_not_missing() -> None:
    kept = [record(code, "passed", needs=("greedy",)) for code in ("REJ202", "REJ205")]
    (cause,) = find_causes([record("REJ201", needs=("greedy",)), *kept])
    assert cause.missing == ""


def test_check_at_several_sizes_is_reported_once() -> None:
    sizes = [dataclasses.replace(record(f"REJ64{i}"), title=f"a vocabulary of {2**i} is handled") for i in (5, 6, 7)]
    distributions = [record(code) for code in ("DIST101", "DIST102", "DIST203")]
    causes = find_causes([*distributions, *sizes])
    assert [len(cause.records) for cause in causes] == [3, 1, 1, 1]


@pytest.mark.parametrize("word", ["explicit-noise", "dense-drafts", "one-hot-drafts", "ragged", "token-verification"])
def test_capability_that_most_checks_need_is_never_offered_for_declining(word: str) -> None:
    assert word not in SELDOM
    assert not find_causes([record("REJ310", needs=(word,))])[0].missing


def test_exception_that_ends_many_checks_is_one_cause_and_the_first() -> None:
    asked = (("REJ104", ()), ("REJ201", ("greedy",)))
    raised = [record(code, effect=f"IndexError: lane {i}", needs=needs) for i, (code, needs) in enumerate(asked)]
    causes = find_causes([record("REJ101"), *raised])
    assert [[one.code for one in cause.records] for cause in causes] == [["REJ104", "REJ201"], ["REJ101"]]


def test_exception_of_one_missing_capability_is_reported_with_it() -> None:
    raised = record("REJ201", effect="IndexError: lane", needs=("greedy",))
    (cause,) = find_causes([raised, record("REJ202", needs=("greedy",)), record("REJ101", "passed")])
    assert (cause.missing, len(cause.records)) == ("greedy", 2)


@pytest.mark.parametrize("codes", [("SAM161", "SAM193"), ("REJ501", "REJ702", "REJ703")])
def test_sampler_that_no_seed_reaches_is_reported_once(codes: tuple[str, ...]) -> None:
    (cause,) = find_causes([record(code) for code in codes])
    assert [one.code for one in cause.records] == list(codes)
    assert "declare `seeded-noise` unsupported" in " ".join(CHECKS[codes[0]].meaning.split())
    assert len(find_causes([record(codes[0], "passed"), *map(record, codes[1:])])) == len(codes) - 1


def test_what_has_no_failure_report_is_reported_last() -> None:
    mixed = (record("REJ101", "xpassed"), record("DIST101", "inconclusive"), record("DIST203"))
    assert reported_codes(*mixed) == ["DIST203", "REJ101", "DIST101"]
