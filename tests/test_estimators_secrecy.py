"""Estimators: no value of anybody decides an error, a warning or a class; only private releases tell of data."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from support_estimators import SEEDED, made, ready

from userdp import LinearRegression, LogisticRegression, PublicScaler
from userdp.models.sklearn_compat import UtilityWarning


def outcome(model, X, y, users):
    """What an observer sees besides the noise: the error's text, or the fitted facts."""
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            model.fit(X, y, groups=users)
        return model.aborted_, model.classes_.tolist(), [str(w.message) for w in heard]
    except (ValueError, TypeError) as error:
        return str(error)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308, 5e-324])
def test_one_person_s_values_raise_and_warn_nothing(value):
    model = ready(LogisticRegression, classes=[0, 1], solver="phased-sgd")
    X, y, users = made(model)
    X, y = X.copy(), y.astype(float)
    usual = outcome(model, X, y, users)
    X[users == 7] = value
    assert outcome(model, X, y, users) == usual
    y[users == 7] = value
    assert outcome(model, X, y, users) == usual
    assert np.isfinite(model.coef_).all()


def test_one_person_s_rare_label_is_not_told():
    model = ready(LogisticRegression, classes=["no", "yes"], solver="phased-sgd")
    X, y, users = made(model)
    labels = np.where(y, "yes", "no").astype(object)
    usual = outcome(model, X, labels, users)
    for strange in ("secret", None, ["list"], np.nan):
        for i in np.flatnonzero(users == 7):
            labels[i] = strange
        assert outcome(model, X, labels, users) == usual


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # noise hides much of so few users
def test_labels_that_are_wrong_are_counted_privately():
    model = ready(LogisticRegression, classes=[0, 1])
    X, y, users = made(model)
    with pytest.warns(UtilityWarning, match=r"^About [89].% of the users .*have .*targets that cannot be used"):
        model.fit(X, np.where(y, 2, 1), groups=users)
    assert not model.aborted_


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # noise hides much of so few users
@pytest.mark.parametrize("scaler", [False, True])
@pytest.mark.parametrize("shape", ["text", "complex", "flat", "narrow", "sparse", "dates"])
def test_what_x_cannot_be_is_refused_without_quoting_it(shape, scaler):
    model = PublicScaler() if scaler else ready(LogisticRegression)
    X, y, users = made(model if not scaler else LogisticRegression())
    secret = 0.123456789
    X = np.full_like(X, secret)
    if shape == "sparse" and not scaler:
        model.fit(csr_array(X), y, groups=users)  # these are taken
        return
    strange = {
        "text": X.astype(str),
        "complex": X.astype(complex),
        "flat": X[:, 0],
        "narrow": X[:, :0],
        "sparse": csr_array(X),
        "dates": pd.DataFrame(X).astype("datetime64[ns]"),
    }[shape]
    with pytest.raises((TypeError, ValueError), match=r"^(column 0 of )?X must (be|have shape)") as caught:
        model.fit(strange, y, **({} if scaler else {"groups": users}))
    for error in (caught.value, caught.value.__cause__, caught.value.__context__):
        assert not any(told in str(error) for told in ("secret", "0.123", str(len(X))))


def with_one(values, position, value):
    changed = list(values)
    changed[position] = value
    return changed


@pytest.mark.parametrize("strange", [None, "x", np.nan, 10**400, [1, 2], pd.NA, b"x"], ids=lambda v: type(v).__name__)
def test_the_type_of_one_person_s_target_decides_nothing(strange):
    X, y, users = made(LogisticRegression())
    numbers = made(LinearRegression())[1].tolist()
    classifier = ready(LogisticRegression, classes=[False, True], solver="phased-sgd")
    regressor = ready(LinearRegression, solver="phased-sgd")
    classifier.fit(X, with_one(y.tolist(), 7, strange), groups=users)
    regressor.fit(X, with_one(numbers, 7, strange), groups=users)
    assert np.isfinite(classifier.coef_).all()
    assert np.isfinite(regressor.coef_).all()


@pytest.mark.parametrize("strange", ["secret", None, 10**400, pd.NA, [1, 2]], ids=lambda v: type(v).__name__)
def test_the_type_of_one_person_s_cell_decides_nothing(strange):
    model = ready(LogisticRegression, solver="phased-sgd")
    X, y, users = made(model)
    cells = X.astype(object)
    cells[3, 1] = strange
    for rows in (cells, pd.DataFrame(cells)):
        assert np.isfinite(model.fit(rows, y, groups=users).coef_).all()


def test_missing_values_in_typed_columns():
    X, y, users = made(LogisticRegression())
    labels = pd.Series(y).astype("boolean")
    labels[7] = pd.NA
    table = pd.DataFrame(X, columns=["a", "b", "c"]).astype("Float64")
    table.iloc[9, 1] = pd.NA
    model = ready(LogisticRegression, solver="phased-sgd").fit(table, labels, groups=users)
    assert model.classes_.tolist() == [False, True]
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]


def test_a_list_of_truths_is_no_declared_type():
    """Else one person's None would decide between a model and an error."""
    X, y, users = made(LogisticRegression())
    for labels in (y.tolist(), with_one(y.tolist(), 7, None)):
        with pytest.raises(ValueError, match="classes"):
            ready(LogisticRegression).fit(X, labels, groups=users)


def test_a_warning_that_is_an_error_does_not_take_the_model_away():
    X, y, users = made(LogisticRegression())
    model = ready(LogisticRegression, delta=0.01, solver="phased-sgd")
    with pytest.raises(UtilityWarning, match=r"delta=0\.01 is not below 1 over the 3000 users"):
        model.fit(X, y, groups=users)
    assert model.score(X, y) > 0.7


def test_a_refused_fit_leaves_the_model_as_it_was():
    X, y, users = made(LogisticRegression())
    model = ready(LogisticRegression, solver="phased-sgd").fit(X, y, groups=users)
    before = model.to_dict()
    with pytest.raises(ValueError, match="Nothing was spent"):
        model.set_params(classes=["a", "b", "c"], epsilon=0.001).fit(X, np.full(len(y), "a", object), groups=users)
    assert model.to_dict() == before
    assert before["parameters"]["epsilon"] == SEEDED["epsilon"]


@pytest.mark.parametrize("bad", ["x", "y", "label"])
def test_unprotected_checks_raise_as_other_estimators_do(bad):
    model = ready(LogisticRegression, unprotected_checks=True, classes=[0, 1])
    X, y, users = made(model)
    X, y = X.copy(), y.astype(float)
    if bad == "x":
        X[0, 0] = np.nan
    else:
        y[0] = np.nan if bad == "y" else 7
    with pytest.raises(ValueError, match="NaN" if bad != "label" else "among the classes"):
        model.fit(X, y, groups=users)


def test_categories_made_of_the_data_are_not_published():
    model = ready(LogisticRegression)
    X, y, users = made(model)
    labels = pd.Series(np.where(y, "yes", "no"))
    labels[7] = "rare"
    with pytest.raises(ValueError, match="not read off the data"):
        model.fit(X, labels.astype("category"), groups=users)
