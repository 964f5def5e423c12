"""Labels of any kind become positions in the classes, and only the target's type or the classes decide how."""

import numpy as np
import pyarrow as pa
import pytest

from userdp.cli.errors import InputError
from userdp.cli.tables import classes_of
from userdp.data.schema import positions
from userdp.data.tables import open_table

NAN = float("nan")


@pytest.mark.parametrize(
    ("labels", "text", "classes", "expected"),
    [
        (pa.array(["b", "a", None, "c"]), "b,a", ["a", "b"], [1, 0, NAN, NAN]),
        (pa.array(["b", "a"], pa.large_string()), "b,a", ["a", "b"], [1, 0]),
        (pa.array(["b", "a", None]).dictionary_encode(), "b,a", ["a", "b"], [1, 0, NAN]),
        (pa.array(["1", "0"]), "0,1", ["0", "1"], [1, 0]),
        (pa.array([True, None, False]), None, [False, True], [1, NAN, 0]),
        (pa.array([True, None, False]), "1,0", [False, True], [1, NAN, 0]),
        (pa.array([3, 1, None, 7], pa.int8()), "3,1", [1, 3], [1, 0, NAN, NAN]),
        (pa.array([3, 1, 2**64 - 1], pa.uint64()), "3,1", [1, 3], [1, 0, NAN]),
        (pa.array([2**53 + 1, 2**53]), f"{2**53},{2**53 + 1}", [2**53, 2**53 + 1], [1, 0]),
        (pa.array([3.0, 1.0, NAN, 1.5]), "3,1", [1, 3], [1, 0, NAN, NAN]),
        (pa.array([3, 1]), "3,1.5,1", [1, 1.5, 3], [2, 0]),
        (pa.array([0.5, 1.0], pa.float32()), "0.5,1", [0.5, 1], [0, 1]),
    ],
)
def test_labels(labels, text, classes, expected):
    column = pa.chunked_array([labels])
    assert classes_of(text, column, "y") == classes
    np.testing.assert_array_equal(positions("y", column, classes), expected)


@pytest.mark.parametrize(
    ("cells", "classes", "expected"),
    [
        (["1", "2", "oops", ""], "2,1", [0, 1, NAN, NAN]),
        (["1", "2", "oops", ""], "2,1,oops", [0, 1, 2, NAN]),
        (["1", "2", "2", "1"], "2,1,oops", [0, 1, 1, 0]),  # the same, though nobody oopses
        (["1", "2", "2.0", "1"], "2,1", [0, 1, 1, 0]),
        (["true", "FALSE", "maybe", "1"], "True,False", [1, 0, NAN, 1]),
        (["true", "maybe", "maybe", "maybe"], "true,false", [1, NAN, NAN, NAN]),  # whatever most are
        (["a", "a", "a", "7"], "7,8", [NAN, NAN, NAN, 0]),
        (["7", "7", "7", "a"], "a,b", [NAN, NAN, NAN, 0]),
        (["NA", "EU", "NA", "EU"], "EU,NA", [1, 0, 1, 0]),
    ],
)
def test_labels_of_csv_are_what_the_classes_are(tmp_path, cells, classes, expected):
    path = tmp_path / "t.csv"
    path.write_text("".join(f"{cell},1\n" for cell in ["y", *cells]))
    table = open_table(path)
    declared = classes_of(classes, table["y"], "y")
    np.testing.assert_array_equal(positions("y", table["y"], declared), expected)


@pytest.mark.parametrize("cells", [["true", "false"], ["a", "b"], ["1", "0"]])
def test_classes_of_csv_are_never_read_off_it(tmp_path, cells):
    path = tmp_path / "t.csv"
    path.write_text("".join(f"{cell},1\n" for cell in ["y", *cells]))
    with pytest.raises(InputError, match=r"Expected --classes.*pass --classes false,true"):
        classes_of(None, open_table(path)["y"], "y")


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["a"], [1, 2]),
        ([1], ["a", "b"]),
        ([True], ["a", "b"]),
        (["a"], [False, True]),
        ([b"a"], ["a", "b"]),
    ],
)
def test_classes_of_another_type(labels, classes):
    with pytest.raises(TypeError, match="must hold labels such as"):
        positions("column 'y'", pa.chunked_array([labels]), classes)
