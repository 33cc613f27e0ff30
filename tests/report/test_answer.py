"""Invariant: a headline says what the verdicts say, for every mix of them, and never more."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from stochbatch.report.answer import (
    cards,
    clause,
    counted,
    headline,
    kind,
    named,
    numbers,
    sentences,
)
from stochbatch.report.charts import forest
from stochbatch.report.layout import Layout
from stochbatch.studies import SCALES, STUDIES, Scale, Study, collect
from stochbatch.studies.claim import Claim
from stochbatch.studies.statistics import ClaimStatistics, StudyStatistics
from stochbatch.studies.verdicts import Interval
from tests.studies.test_claims import GROWTH
from tests.studies.test_statistics import STUDY, results

VERDICTS = (
    "better",
    "worse",
    "no practical difference",
    "undecided",
    "1 of 3 pairs",
    "0 of 3 pairs",
    "3 pairs, not as planned",
)
SAYS = {
    "better": "sbs is shown to beat sgd",
    "worse": "sbs is shown to lose to sgd",
    "no practical difference": "No practical difference between sbs and sgd",
    "undecided": "sbs is not shown to differ from sgd",
    "1 of 3 pairs": "No verdict yet on sbs against sgd: 1 of 3 pairs of trials are done",
    "0 of 3 pairs": "No verdict yet on sbs against sgd: 0 of 3 pairs of trials are done",
    "3 pairs, not as planned": "No verdict on sbs against sgd: not the planned number of trials",
}


def pairs_of(verdict: str) -> int:
    return int(verdict[0]) if verdict[0].isdigit() else 3


def judged(row: ClaimStatistics, verdict: str, difference: float = 1.0) -> ClaimStatistics:
    """Return a comparison with another verdict, and numbers that suit it."""
    pairs = pairs_of(verdict)
    difference = -difference if verdict == "worse" else difference
    return replace(
        row,
        verdict=verdict,
        pairs=pairs,
        planned=3,
        difference=difference if pairs else None,
        interval=Interval(difference - 0.5, difference + 0.5) if pairs > 1 else None,
        detectable=2.0 if pairs > 1 else None,
    )


@cache
def found_once() -> Layout:
    """Return a study of one claim in two places."""
    return Layout.of(results([90.0, 91.0, 93.0], [91.0, 92.0, 93.0]))


def layout(*verdicts: str, primary: bool = False) -> Layout:
    """Return that study with other verdicts; the last is of the whole."""
    found = found_once()
    rows = [judged(row, one) for row, one in zip(found.claims, verdicts, strict=True)]
    if primary:
        rows[-1] = replace(rows[-1], family="primary")
    return Layout(found.results, StudyStatistics(found.statistics.cells, tuple(rows)))


@pytest.mark.parametrize("primary", [False, True])
@pytest.mark.parametrize("verdict", VERDICTS)
def test_the_headline_is_about_the_whole_table(verdict: str, primary: bool) -> None:
    for places in itertools.product(VERDICTS, repeat=2):
        assert headline(layout(*places, verdict, primary=primary)) == SAYS[verdict]


def several(*verdicts: str, best: bool = False) -> Layout:
    """Return a study with a claim for each verdict, which has one place and no table."""
    labels = [f"m{number}" for number in range(len(verdicts))]
    others = ("sgd", "adam") if best else ("sgd",)
    claims = [Claim(axis="method", better=label, than=others, best=best) for label in labels]
    found = layout("undecided", "undecided", "undecided")
    study = found.results.study.model_copy(update={"claims": claims})
    row = found.claims[0]
    rows = tuple(
        judged(replace(row, claim=claim, ahead=None), verdict)
        for claim, verdict in zip(claims, verdicts, strict=True)
    )
    return Layout(
        replace(found.results, study=study), StudyStatistics(found.statistics.cells, rows)
    )


@pytest.mark.parametrize("mix", list(itertools.combinations_with_replacement(VERDICTS[:6], 2)))
def test_two_claims_have_a_clause_each(mix: tuple[str, str]) -> None:
    text = headline(several(*mix))
    kinds = [kind(row) for row in several(*mix).claims]
    for word, one in (("beat", "better"), ("lose", "worse"), ("differ from", "undecided")):
        assert (f"{word}" in text) == (one in kinds)
    assert ("No practical" in text) == ("same" in kinds)
    assert ("No verdict yet" in text) == ("none" in kinds)
    assert all(label in text for label in ("m0", "m1"))


@pytest.mark.parametrize("mix", list(itertools.combinations_with_replacement(VERDICTS, 3)))
def test_of_many_comparisons_every_decided_one_is_counted(mix: tuple[str, ...]) -> None:
    text = counted([judged(layout(*["undecided"] * 3).claims[0], one) for one in mix])
    words = {
        "better": "in favour",
        "worse": "against",
        "no practical difference": "as no practical difference",
    }
    for verdict, said in words.items():
        count = mix.count(verdict)
        assert (said in text) == bool(count)
        assert not count or any(f"{count}{mid}{said}" in text for mid in (" ", *DECIDED))
    if not set(mix) & set(words):
        assert text == (
            "None of the 3 comparisons is decided"
            if "undecided" in mix
            else f"No verdict{' yet' if set(mix) <= set(VERDICTS[4:6]) else ''} "
            "on any of the 3 comparisons"
        )


DECIDED = (" is decided ", " are decided ")


def test_a_headline_has_clauses_as_long_as_there_is_room_then_it_counts() -> None:
    assert headline(several("better", "undecided")) == (
        "m0 is shown to beat sgd; m1 is not shown to differ from sgd"
    )
    mix = ["better", "worse", "undecided", "no practical difference", "0 of 3 pairs"]
    assert headline(several(*mix)) == (
        "Of the 5 comparisons, 1 is decided in favour, 1 against, 1 as no practical difference"
    )


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        ("best", "m0 is shown to be the best of 3"),
        ("not the best", "m0 is shown not to be the best of 3"),
        ("undecided", "m0 is not shown to be the best of 3"),
        (
            "2 of 3 pairs",
            "No verdict yet on m0 as the best of 3: 2 of 3 pairs of trials are done",
        ),
    ],
)
def test_a_claim_to_be_the_best_is_called_so(verdict: str, says: str) -> None:
    assert headline(several(verdict, best=True)) == says


def test_places_that_disagree_are_counted() -> None:
    rows = layout("better", "undecided", "undecided").claims
    assert clause(rows[:2]) == "sbs against sgd: better in 1 of 2 places, undecided in 1"
    same = layout("worse", "worse", "undecided").claims
    assert clause(same[:2]) == "sbs is shown to lose to sgd in all 2 places"
    early = layout("0 of 3 pairs", "1 of 3 pairs", "undecided").claims
    assert clause(early[:2]) == "No verdict yet on sbs against sgd in any place"


def test_a_part_of_a_study_is_called_a_part() -> None:
    found = layout("better", "better", "better")
    part = Layout(replace(found.results, narrowed="2 of 4 cells"), found.statistics)
    assert headline(part) == "In this part of the study: sbs is shown to beat sgd"


def test_without_a_claim_the_title_stands_there() -> None:
    study = STUDY.model_copy(update={"claims": []})
    found = Layout.of(results([90.0], study=study))
    assert (headline(found), sentences(found), cards(found)) == ("Two methods", [], [])


def test_numbers_say_which_way_and_how_sure() -> None:
    row = layout("worse", "better", "undecided").claims[0]
    assert numbers(row) == (
        "sbs is 1.00 points behind sgd in the mean of 3 paired seeds "
        "(95 % interval -1.50 to -0.50)."
    )
    assert numbers(judged(row, "1 of 3 pairs")) == (
        "sbs is 1.00 points ahead of sgd with one paired seed."
    )
    assert "is level with" in numbers(judged(row, "undecided", 0.001))
    assert numbers(judged(row, "0 of 3 pairs")) == "No pair of trials of sbs and sgd is done yet."


def test_the_sentences_carry_the_headline() -> None:
    found = sentences(layout("worse", "undecided", "undecided"))
    assert found[0].startswith("Averaged over 2 places, sbs is 1.00 points ahead of sgd")
    assert "by place from −1.00 to +1.00 points" in found[1]  # noqa: RUF001
    assert found[2] == "A true difference of 2.0 points would be found with probability 0.8."
    early = sentences(layout("0 of 3 pairs", "0 of 3 pairs", "0 of 3 pairs"))
    assert early[-1] == "A verdict needs exactly the 3 planned trials per cell."
    two = sentences(several("undecided", "undecided"))  # what holds for one is not said of both
    assert (len(two), "probability 0.8" in "".join(two)) == (2, False)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_card_has_the_colour_and_the_words_of_its_verdict(verdict: str) -> None:
    (card,) = cards(layout("undecided", "better", verdict))
    assert (card.kind, card.title) == (
        kind(judged(layout(*["better"] * 3).claims[0], verdict)),
        SAYS[verdict],
    )
    assert sum(int(words.split()[0]) for _, words in card.tally) == 3


@pytest.mark.parametrize("name", list(STUDIES))
def test_a_study_that_was_not_run_has_no_answer_yet(name: str) -> None:
    found = Layout.of(collect(STUDIES[name], SCALES["demo"], "nowhere"))
    text = headline(found)
    assert text.startswith("No verdict") or text == STUDIES[name].title
    assert not any(word in text for word in ("beat", "lose", "best of 8 in all"))


def test_a_bare_number_is_named_with_its_axis() -> None:
    claim = Claim(axis="batch size", better="128", than="16")
    study = STUDY.model_copy(update={"claims": [claim]})
    text = headline(Layout.of(results([90.0, 91.0], [90.0, 92.0], study=study)))
    assert "batch size 128 against batch size 16" in text or "batch size 128 is" in text


def test_real_trials_give_the_headline_of_their_verdict() -> None:
    scale = Scale("full", "As published.", repetitions=3, comparable=True)
    low, high = [90.0, 91.0, 90.5], [95.0, 96.1, 95.4]
    found = Layout.of(results(low, high, low, high, scale=scale))
    assert [row.verdict for row in found.claims][-1] == "better"
    assert headline(found) == "sbs is shown to beat sgd"


def test_a_claim_is_named_in_full_whatever_its_name_holds() -> None:
    found = Layout.of(collect(STUDIES["readings"], SCALES["demo"], "nowhere"))
    names = [one.name for _, rows in forest(found).groups for one in rows]
    assert names == [claim.name for claim in STUDIES["readings"].claims]


def grown(study: Study = GROWTH) -> Layout:
    """Return a study of a gain that grows as data shrink."""
    low, high = [50.0, 51.0, 52.0], [51.0, 53.0, 53.5]
    return Layout.of(results(*[low, high, low, high] * 2, study=study))


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        ("better", "The gain of SBS over SGD at share 0.25 is shown to be larger than"),
        ("worse", "The gain of SBS over SGD at share 0.25 is shown to be smaller than"),
        ("undecided", "The gain of SBS over SGD at share 0.25 is not shown to differ from"),
        ("1 of 3 pairs", "No verdict yet on the gain of SBS over SGD at share 0.25 against"),
    ],
)
def test_a_gain_is_called_a_gain(verdict: str, says: str) -> None:
    row = judged(grown().claims[0], verdict)
    assert clause([row]).startswith(f"{says} that at share 0.5")
    assert "better" not in numbers(row)
    assert ("above that at share 0.5" in numbers(row)) == (verdict != "worse")


def test_one_place_is_not_called_an_average() -> None:
    found = grown()
    one = replace(judged(found.claims[0], "better"), ahead=(1, 1))
    assert numbers(one).startswith("The gain of SBS over SGD at share 0.25 is 1.00 points above")
    assert named(found, one, under_claim=True) == "the whole table"
    two = replace(one, ahead=(1, 2))
    assert numbers(two).startswith("Averaged over 2 places, the gain of SBS")
    assert named(found, two, under_claim=True) == "all 2 places"


def test_a_gain_does_not_share_a_clause_with_what_is_no_gain() -> None:
    own = Claim(axis="method", better="SBS", than="SGD")
    study = GROWTH.model_copy(update={"claims": [own, *GROWTH.claims]})
    text = headline(grown(study))
    assert "SBS" in text.split(";")[0]
    assert "the gain of" in text.lower() or text.startswith(("Of the", "None of", "No verdict"))


def test_a_table_of_which_a_part_was_run_is_not_said_to_be_ahead_in_it() -> None:
    """One place of 24 has all its pairs: that says nothing of the other 23."""
    runs = Path(__file__).parents[2] / "docs" / "evidence"
    study = STUDIES["partial-data"]
    as_then = study.model_copy(update={"base": {**study.base, "norm_init": "ones"}})
    found = Layout.of(collect(as_then, SCALES["small"], runs))
    text = " ".join(sentences(found))
    assert "No seed of SBS and SGD is done in all 24 places yet." in text
    assert "In the 1 place of 24 run so far the difference is +1.10 points." in text
    assert "ahead in" not in text
    assert forest(found).groups[0][1][0].note == "1 of 24 run"
