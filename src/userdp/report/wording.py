"""Sentences of the report: what the numbers of a record mean, for readers without and with mathematics.

Bounds are rounded up, so that no sentence guarantees more than is proved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from userdp.privacy.accounting import ZERO_OUT, rounded_up
from userdp.privacy.ledger import kind_of_class
from userdp.privacy.statement import not_covered as statement_not_covered
from userdp.report.record import clean, number, positive, power, real
from userdp.solvers.solver import WORDS

_UP = 1 + 1e-12  # what floats may have lost
RESTS_ON = "good randomness of the operating system, and OpenDP, dp-accounting and userdp being right"
_STEPS = (
    "The training steps: each releases the average, over users, of the direction in which their data moves the model."
)
_PURPOSES = (
    (
        "differences of scores",
        "How good the candidates of a search are, on average, for users whose data trained none of them.",
    ),
    ("bins of scores", "How often each class gets each prediction, for users who were held out of training."),
    ("spread of scores", "How much the model's scores differ between these users, for intervals."),
    ("scores", "How good the model is for users who were held out of training."),
    ("interval curvature", "How curved the loss is at the model, in all directions: for standard errors."),
    ("interval gradient", "The average gradient of users at the final model: one more step, whose error is known."),
    ("interval spread", "How much users' gradients differ: the part of standard errors that is due to sampling."),
    ("second moment", "How features vary and go together, so that training advances evenly in all directions."),
    ("whitening", "How features vary and go together, so that training advances evenly in all directions."),
    (
        "ranges of columns",
        "Where the numbers of some columns lie, roughly: their ranges, and what fills missing cells.",
    ),
    ("range of targets", "Where targets lie, roughly: the range that they are cut off at."),
    ("levels of", "Which levels of a column many users have."),
    ("column scales", "In which units each feature is, roughly."),
    ("row scale", "How long rows are, roughly."),
    ("burn-in", "The first training steps, which lead near the model and find how long users' gradients are."),
    ("curvature", "One number, how curved the loss is there: it sets the size of the other steps."),
    (
        "recalibration",
        "Steps along the model and its intercept only: they correct the effect of clipping on its scale.",
    ),
    ("candidates", "Fits of all candidates of a search, on the users who train."),
    ("sizes of differences", "How far candidates differ for a user, roughly, so that noise need not be larger."),
    ("mean score", "How good the candidates of a search are together."),
    # Of files of earlier versions, which had searches with random stopping.
    ("random stopping", "A search: candidates drawn at random, fitted and scored; only the best is released."),
    ("refit", "The chosen candidate, fitted again on everyone."),
    ("radius", "How far apart users' contributions are, so that noise need not be larger than that."),
    ("gradients", _STEPS),
    ("steps", _STEPS),
    ("mean", _STEPS),
    ("phase", "Training on all or some of the users: the average result, from which the next phase begins."),
)
_MECHANISMS = {
    "allotment": "Whole fits, each of noisy steps like these, which together may cost no more than this.",
    "random-stopping": "Chance alone says when the search ends; what was found before, but for the best, is forgotten.",
    "clip": "Each contribution is clipped to a fixed norm; their mean is released with noise.",
    "sampled-clip": "A random sample of users, drawn anew every time and kept secret: each of their contributions is "
    "clipped to a fixed norm; their mean is released with noise.",
    "radius-search": "Noisy counts of how many contributions are close together, at one distance after another.",
    "outlier-removal": "Far-off contributions are left out, a private test checks that few are, then a noisy mean.",
    "gaussian-outlier-removal": "Far-off contributions are left out, a private test in each round, then a noisy mean.",
    "sampled-outlier-removal": "Random samples of users: far-off contributions left out, a test, then a noisy mean.",
    "searched-outlier-removal": "Finds its own distance, leaves out what is farther off, then a noisy mean.",
    "vocabulary": "Noisy counts of how many users have a level; only levels far above what one user adds are named.",
    "paper-outlier-removal": "Outlier removal, test and noise as the paper prints them.",
    "sampled-paper-outlier-removal": "The same on random samples of users, drawn anew every time and kept secret.",
}
_COLUMNS = {"users_a_step": "users per step", "radius": "released radius", "noise_std": "noise (std)"}


def percent_at_most(chance: float) -> str:
    """A chance in percent, rounded up; never a round 100 for what is less."""
    for decimals in (1, 2, 4):
        parts, whole = math.ceil(chance * _UP * 10 ** (decimals + 2)), 10 ** (decimals + 2)
        if parts < whole:
            return f"{100 * parts / whole:.{decimals}f}%"
    return "100%"


def factor_at_most(epsilon: float) -> str:
    """e^epsilon, rounded up to three digits."""
    if epsilon > 30:
        return f"e^{rounded_up(epsilon)}"
    power = 10 ** (math.floor(epsilon / math.log(10)) - 2)
    rounded = math.ceil(math.exp(epsilon) * _UP / power) * power
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:.3g}"


def up(value: float, digits: int = 4) -> str:
    """Rounded up to so many digits, because it bounds."""
    if not 0 < value < math.inf:
        return number(value)
    return rounded_up(value / _UP, digits)


def one_in(delta: float) -> str:
    """delta as 1 in so many, the many rounded down to two digits."""
    if delta < 1e-15:
        return rounded_up(delta)
    many = 1 / delta * _UP
    power = 10 ** max(0, math.floor(math.log10(many)) - 1)
    return f"1 in {math.floor(many / power) * power:,}"


def plain_guarantee(privacy: Mapping[str, Any]) -> str:
    """The guarantee in one sentence."""
    epsilon, delta = privacy["epsilon"], privacy["delta"]
    all_of_it = "one row"
    if privacy["unit"] == "user":
        all_of_it = f"everything one {privacy['word']} contributed, however many rows,"
    exception = f", plus a chance of {one_in(delta)}" if delta else ""
    changing = f"Replacing {all_of_it} by anything else"
    if privacy["relation"] == ZERO_OUT:
        changing = f"Leaving {all_of_it} out of every total"
    return (
        f"{changing} changes the probability of every possible result of this release, and "
        f"of every conclusion drawn from it, by at most a factor of {factor_at_most(epsilon)}{exception}."
    )


def attack_in_words(privacy: Mapping[str, Any]) -> str:
    """What the guarantee means for an attacker who wants to find out about one user."""
    versions = "one row: the true one, say, and another"
    if privacy["unit"] == "user":
        versions = f"one {privacy['word']}'s data: the true one, say, and someone else's"
    if privacy["relation"] == ZERO_OUT:
        versions = f"what was done: one {privacy['word']}'s data was used, or it was left out of every total"
    alone, best = percent_at_most(privacy["alone"]), percent_at_most(privacy["best"])
    beyond = f" (ε, δ) alone would allow {alone}; the noise of this release is known in full, and allows {best}."
    warning = " That is a weak guarantee: on its own it rules out little." if privacy["weak"] else ""
    return (
        "is the best chance of a right guess that this release can give to an attacker who knows everything else and "
        f"starts with even odds between two versions of {versions}. Guessing by a coin is right 50% of the time."
        f"{'' if privacy['tradeoff'] is None else beyond}{warning}"
    )


def noise_facts(privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the noise gives beyond (epsilon, delta), as names and words; nothing for models that did not keep it."""
    found, unit = privacy["tradeoff"], privacy["word"]
    if found is None:
        return []
    alone, best = percent_at_most(privacy["alone"]), percent_at_most(privacy["best"])
    rows = [("right guesses", f"{best} at most with this noise; (ε, δ) alone would allow {alone}")]
    if found.mu is not None:
        but = f", but for events of chance {power(found.mu_failure)}, counted in δ" if found.mu_failure else ""
        rows.append(("μ", f"{up(found.mu)}: it reveals no more than one Gaussian mechanism of this μ (μ-GDP){but}"))
    failure = "No: noise alone protects, and there is no test that could err."
    if found.failure:
        failure = (
            f"With a chance of {power(found.failure)} at most, counted in δ: nothing is guaranteed then. A private "
            "test may pass where it should not, say."
        )
    rows.append(("can it fail outright?", failure))
    if found.added_epsilon is not None:
        words = (
            f"{up(found.added_epsilon, 3)}: what libraries that account for adding or removing a {unit} (Opacus, say) "
            "would print for the same noise and δ. It is another guarantee, shown only to compare with."
        )
        rows.append(("ε if counted by others", words))
    if found.replaced_epsilon is not None:
        words = f"{up(found.replaced_epsilon, 3)}: what the same noise guarantees where a {unit}'s data is replaced"
        rows.append(("ε for replace-one", f"{words} by other data, at the same δ."))
    return rows


def other_deltas(privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The same release's epsilon at other deltas."""
    return [
        (power(delta), "none: tests may err more often" if epsilon is None else up(epsilon))
        for delta, epsilon in privacy["tradeoff"].epsilons
    ]


def error_in_words(record: Mapping[str, Any]) -> str:
    """What the number by which the plan was chosen says about the model's error."""
    bound, nothing = record["bound"], record["loss_at_zero"]
    useless = positive(nothing) and real(bound) >= real(nothing)
    if record["bound_is_estimate"]:
        return (
            f"Estimate, {number(bound, 2)}: by how much this model's mean loss should exceed that of the best model, "
            "by public and released numbers. No theorem guarantees that it stays below."
            + " As an error it is too large to be informative."
            * useless
        )
    return (
        f"Bound, {number(bound, 2)}: what theory proves of how far this model's mean loss can be above that of "
        "the best model, in the worst case, if the declared numbers are right."
        + " As so often, the worst case is too pessimistic to be informative."
        * useless
    )


def not_covered(privacy: Mapping[str, Any]) -> list[str]:
    """What the guarantee does not protect."""
    return [
        "What many users have in common. That is what is learned, and it can be applied to anybody.",
        f"The number of {privacy['word']}s, names and types of columns and all parameters; how long training took and "
        "how much memory; the machine and its files.",
        *statement_not_covered(privacy["relation"], privacy["word"]),
    ]


def exact_guarantee(record: Mapping[str, Any]) -> tuple[str, str]:
    """The guarantee as a mathematician writes it: over what, and the inequality's numbers."""
    privacy = record["privacy"]
    differ = f"one {privacy['word']}'s whole data" if privacy["unit"] == "user" else "one row"
    what = "replacement"
    if privacy["relation"] == ZERO_OUT:
        differ, what = f"{differ}, which in D′ adds nothing to any total", "zeroing out (a user's part of totals)"
    noted = bool(privacy["warning"])
    return (
        f"For all data sets D and D′ of {number(record['n_users'])} {privacy['word']}s that are equal except for "
        f"{differ}{', and agree in what was read off them without protection (see the note above)' * noted}, and every "
        "set S of outcomes:",
        f"ε = {rounded_up(privacy['epsilon'])}, δ = {power(privacy['delta'])}. A is everything released: weights, "
        f"radii, aborts. This is {privacy['word']}-level (ε, δ)-differential privacy under {what}. Nothing "
        f"{'else ' * noted}is assumed about the data, nor about an attacker's knowledge or computing power.",
    )


def cautions(record: Mapping[str, Any]) -> list[str]:
    """What a careful reader should know besides, given these numbers."""
    privacy, found = record["privacy"], []
    expected = privacy["delta"] * record["n_users"]
    if privacy["unit"] == "row":
        found.append(
            "Single rows are protected, not users: what is guaranteed to a user gets weaker with each row that they "
            "contributed (k rows: k times epsilon, and a larger delta)."
        )
    if expected >= 1:
        found.append(
            f"δ = {power(privacy['delta'])} is not below 1 / {number(record['n_users'])}, one over the number of "
            f"{privacy['word']}s: a δ this large would even allow publishing one {privacy['word']}'s data outright."
        )
    if privacy["affected_users"] is not None and privacy["affected_users"].clear:
        found.append(privacy["affected_users"].in_words(privacy["word"]))
    found += [clean(str(note)) for note in record["notes"]]
    if privacy["warning"] and privacy["private"]:
        found.append(clean(privacy["warning"]))
    ledger = privacy["ledger"]
    if privacy["private"] and ledger is not None and math.inf > real(ledger.get("spent_epsilon")) > privacy["epsilon"]:
        found.append(
            f"More was released from the same data before: together it is ε = {number(ledger['spent_epsilon'], 3)} at "
            f"δ = {power(ledger['delta'])}, a running total. If this model rests on any of it, a private scaler say, "
            "or was chosen by looking at it, what is guaranteed for all of it together is the ledger's budget, ε = "
            f"{number(ledger.get('epsilon'), 3)}."
        )
    if privacy["private"] and ledger is not None and ledger.get("spent_epsilon") in (None, math.inf):
        found.append(
            "A seeded run was charged to the same ledger: this release is private, all of them together are not."
        )
    return found


def purpose(step: Mapping[str, Any]) -> str:
    """What a step of the plan is for."""
    label = str(step.get("step", "")).lower()
    return next((words for name, words in _PURPOSES if name in label), "A release of the plan.")


def how(step: Mapping[str, Any]) -> str:
    """How a step's mechanism protects."""
    return (_MECHANISMS | WORDS).get(_kind(step), "See the record below.")


def _kind(step: Mapping[str, Any]) -> str:
    """A mechanism's kind, or what it was called when its variants were mechanisms of their own."""
    kind, numbers = kind_of_class(str(step.get("mechanism", ""))), step.get("record")
    if not isinstance(numbers, Mapping):
        return kind
    if kind == "clip" and real(numbers.get("sampling_probability", 1.0)) < 1:
        return "sampled-clip"
    if kind == "outlier-removal" and numbers.get("test_std") is not None:
        return "searched-outlier-removal" if numbers.get("radii") else "gaussian-outlier-removal"
    return kind


def radius_in_words(record: Mapping[str, Any]) -> str:
    """What the radius of a phase is: where outliers begin, or the clip norm of contributions."""
    kinds = [_kind(step) for step in record["privacy"]["mechanisms"]]
    if kinds and all(kind in ("clip", "sampled-clip") for kind in kinds):
        return "Radius: the clip norm of contributions, chosen from public numbers and earlier releases."
    return (
        "Radius: how far apart contributions may be before they count as outliers. Theory expects one from public "
        "numbers; a smaller one that was found privately means that users' contributions are closer than expected."
    )


def column(key: object) -> str:
    """The heading of a phase's number."""
    return _COLUMNS.get(str(key), clean(key).replace("_", " "))


def column_in_words(record: Mapping[str, Any], learned: bool) -> str:
    """What a column means and what becomes of missing cells, in words."""
    kind, low, high = clean(record.get("type", "")), record.get("low"), record.get("high")
    words = [f"{kind} from {number(low)} to {number(high)}" if low is not None or high is not None else kind]
    if isinstance(levels := record.get("levels"), list | tuple):
        words[0] += f": {', '.join(map(clean, levels)) or 'none that enough users have'}; others together"
    if record.get("transform"):
        words.append(f"its {clean(record['transform'])}")
    words += [f"{part}: {', '.join(map(clean, record[part]))}" for part in ("parts", "cycles") if record.get(part)]
    if record.get("n_features") is not None:
        words.append(f"{number(record['n_features'])} hashed features")
    if (fill := record.get("fill")) is not None:
        words.append(f"missing cells count as {str(fill).lower() if isinstance(fill, bool) else number(fill)}")
    if record.get("missing_indicator"):
        words.append("one more feature marks missing cells")
    return "; ".join(words) + (" (learned privately)" if learned else "")


def declared_names(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The purpose, and the names of files and columns, where they were given; never what is in them."""
    source = record["source"]
    named = [
        ("purpose", record["parameters"].get("purpose")),
        ("data", source.get("data")),
        ("target", source.get("target")),
        ("weight of rows", source.get("weight")),
        ("exposure", source.get("exposure")),
        ("user", source.get("user_column") and f"each id in the column “{source['user_column']}” is one user"),
    ]
    return [(name, clean(words)) for name, words in named if words]


def questions(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Questions of a data-protection officer, and what the record answers, in this order."""
    privacy, count = record["privacy"], f"Yes, {number(record['n_users'])} is taken to be public, and printed."
    private, users, name = privacy["private"], privacy["unit"] == "user", privacy["ledger_name"]
    column = clean(record["source"].get("user_column") or "")
    word = privacy["word"]
    who = f"Each id in the column “{column}” is one {word}" if column else f"Each id is one {word}"
    hidden = f"what one {word}'s rows were, or that they were this {word}'s and not another {word}'s"
    if privacy["relation"] == ZERO_OUT:
        hidden = f"whether one {word}'s data was used"
    protected = (
        f"Each {word}, with all their rows together: nobody can find out from the release, beyond what ε and δ allow, "
        f"{hidden}. {who}; a {word} with several ids is protected for each of them separately, which is less."
    )
    published = (
        "As far as ε and δ protect, yes: the model file, this page and whatever is computed from them, provided that "
        "columns, ranges and parameters were not chosen by looking at the data without privacy. Predictions for new "
        "rows reveal something about those rows, which are not protected. Whether this ε is small enough for the "
        "purpose is for you to judge."
    )
    counted = f"{count} Who they are is protected. If their exact number must stay secret, do not publish this."
    if not users:
        protected = "Each row by itself. All rows of a user together are protected less, the more they are."
        counted = f"{count} If it must stay secret, do not publish this."
    if privacy["warning"]:
        published = (
            "As far as ε and δ protect, yes; but some facts were read off the data without protection (see the note at "
            "the top): whether those may be published is for you to judge."
        )
    if not private:
        protected = "Nobody: the run was seeded, and its noise can be taken off."
        published = "No. Fit again, without a seed."
    adds = (
        "What is released from the other data set comes on top: epsilons add up, and so do deltas, for a user who is "
        "in both."
    )
    twice = f"{adds} Nothing keeps count of it here; one ledger for both data sets would."
    kept = "A note that this was released: it had no ledger file, so nothing else remembers what was spent."
    if name:
        twice = f"{adds} This ledger counts what was charged to it, and nothing else: charge both to the same one."
        kept = f"The ledger “{name}”, with a copy after each release: without it there is no record of what was spent."
    also = (
        "Secret, as before: the data; a journal of the fit, if there is one (--checkpoint; delete it); logs, notebooks "
        "and scores that were made from the data without privacy."
    )
    return [
        ("What is protected?", protected),
        ("May the model be published?", published),
        (f"Is the number of {'users' if users else 'rows'} public?", counted),
        ("What about a user in two data sets?", twice),
        ("Which epsilon is it?", _which_epsilon(privacy)),
        ("What else must be kept?", f"{kept} {also}"),
    ]


def _which_epsilon(privacy: Mapping[str, Any]) -> str:
    """Of this release, and of all that are charged to the same ledger."""
    ledger, epsilon = privacy["ledger"], rounded_up(privacy["epsilon"])
    if not privacy["private"]:
        return f"None: ε = {epsilon} was planned, and with a known seed nothing of it holds."
    own = (
        f"ε = {epsilon} at δ = {power(privacy['delta'])}, for this release. An attacker with even odds between two "
        f"versions of one {'user’s data' if privacy['unit'] == 'user' else 'row'} then guesses right "
        f"{percent_at_most(privacy['best'])} of the time at most."
    )
    if not privacy["ledger_name"] or not math.isfinite(real(ledger.get("epsilon"))):
        return f"{own} Other releases from the same data come on top."
    if ledger.get("spent_epsilon") in (None, math.inf):
        return f"{own} A seeded run was charged to the same ledger: all releases together are not private."
    return (
        f"{own} All releases that are charged to the ledger together stay within its budget, "
        f"ε = {rounded_up(real(ledger['epsilon']))} at δ = {power(real(ledger.get('delta')))}."
    )
