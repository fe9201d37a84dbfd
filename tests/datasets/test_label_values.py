"""Labels from cells: numbers in any spelling, unknown cells, several labels, and errors for ambiguous cells."""

import numpy as np
import pytest

from heatproof.datasets.label_values import AmbiguousTableError, LabelOptions, LabelReader, number_of
from heatproof.errors import HeatproofError


def read(cells, name="label", **options):
    return LabelReader("labels.csv", LabelOptions(**options)).read([name], [cells])


def read_columns(columns, **options):
    names = [f"c{number}" for number in range(len(columns))]
    return LabelReader("labels.csv", LabelOptions(**options)).read(names, columns, is_list=True)


SPELLINGS = {
    "plain": str,
    "of pandas": lambda n: f"{n}.0",
    "leading zeros": lambda n: f"{n:03d}",
    "with a sign": lambda n: f"{n:+d}",
    "exponents": lambda n: f"{n}e0",
    "large exponents": lambda n: f"{n / 10:.1f}E+01",
    "decimal commas": lambda n: f"{n},0",
    "a point at the end": lambda n: f"{n}.",
    "mixed": lambda n: (f"{n}", f"{n}.0", f"{n:02d}", f"{n}e0")[n % 4],
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_classes_are_in_the_order_of_numbers_for_every_spelling(spelling):
    numbers = np.random.default_rng(0).permutation(np.repeat(np.arange(12), 5))
    labels = read([SPELLINGS[spelling](int(number)) for number in numbers])
    assert labels.task == "multiclass"
    np.testing.assert_array_equal(labels.values, numbers)
    assert [number_of(name) for name in labels.class_names] == list(range(12))


def test_two_spellings_of_a_number_are_one_class():
    labels = read(["1", "1.0", "10", "2", "2.0", "1e1"])
    assert labels.class_names == ["1", "2", "10"]
    np.testing.assert_array_equal(labels.values, [0, 0, 2, 1, 1, 2])


def test_class_names_are_those_of_the_table():
    assert read(["01", "02", "01", "02"]).class_names == ["01", "02"]
    assert read(["-1", "-2", "3", "-1", "-2", "3"]).class_names == ["-2", "-1", "3"]
    assert read(["b", "10", "9", "a", "1_0", "b", "10", "9"]).class_names == ["9", "10", "1_0", "a", "b"]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[("1", 1), ("01", 1), ("1.0", 1), ("1e0", 1), ("+1", 1), ("1,5", 1.5), (".5", 0.5), ("−2", -2), ("-2", -2)],
        *[("1_000", None), ("", None), ("nan", None), ("inf", None), ("0x1", None), ("1e999", None), ("9" * 999, None)],
        *[("1.2.3", None), ("1,000,000", None), ("e", None), (".", None)],
    ],
)
def test_numbers_are_recognised(text, number):
    assert number_of(text) == number


@pytest.mark.parametrize("cell", ["", "nan", "NaN", "NA", "N/A", "None", "null", "<NA>", "-1", "-1.0"])
def test_cells_that_may_mean_unknown_are_refused(cell):
    cells = [*"012012012", cell]
    with pytest.raises(AmbiguousTableError, match=r"Row 11 of labels\.csv .*set unknown: \[") as caught:
        read(cells)
    labels = read(cells, **caught.value.suggested_options)
    assert labels.class_names == ["0", "1", "2"]
    assert labels.is_known.tolist() == [True] * 9 + [False]
    assert read(cells, unknown=["blank", -1, "nan", "na", "n/a", "none", "null", "<na>"]).class_names == ["0", "1", "2"]
    if cell:
        assert len(read(cells, unknown=[]).class_names) == 4, "the config says that it is a class"
    else:
        with pytest.raises(AmbiguousTableError, match=r"unknown: \[blank\]"):
            read(cells, unknown=[])


def test_unknown_cells_missing_in_the_config_are_named():
    with pytest.raises(AmbiguousTableError, match=r"unknown: \[nan, -1\] to leave such images out\."):
        read([*"000111", "nan", "", "-1"], unknown="blank")


def test_all_unknown_cells_are_named_in_one_message():
    with pytest.raises(AmbiguousTableError, match=r"unknown: \[nan, blank, -1\]") as caught:
        read([*"000111", "nan", "", "-1", ""])
    assert read([*"000111", "nan", "", "-1", ""], **caught.value.suggested_options).is_known.sum() == 6


AMBIGUOUS = {
    "ages": ([str(20 + n % 24) for n in range(240)], "24 different numbers, from 20 to 43: set task: regression"),
    "fractions": (["0.5", "1.5"] * 9, "2 different numbers, from 0.5 to 1.5: set task: regression .* task: multiclass"),
    "seldom": ([str(7 * n) for n in range(9)], "9 different numbers"),
    "as many as rows": ([str(n) for n in range(30)], "30 different numbers"),
    "commas": (["1,2", "3,4"] * 9, r"or separator: ','"),
    "some commas": (["1,2", "3", "1", "2"] * 9, r"separator: ',' .* or task: regression, or multiclass"),
    "bars": (["a|b", "c|d"] * 9, r"separator: '\|' if that is 2 labels, '\w' and '\w', or task: multiclass"),
    "semicolons": (["a;b", "a", "b"] * 9, "separator: ';'"),
    "tags": (["haze primary", "clear primary water", "agriculture clear primary"] * 9, "separator: ' '"),
    "ids": (["16 0", "7 1 2 0", "5"] * 9, "separator: ' '"),
}


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_ambiguous_cells_are_refused(case):
    cells, message = AMBIGUOUS[case]
    with pytest.raises(AmbiguousTableError, match=message):
        read(cells)
    assert read(cells, task="multiclass").class_names == read(cells, task="multiclass").class_names
    assert len(read(cells, task="multiclass").class_names) == len(set(cells))


@pytest.mark.parametrize(
    "cells",
    [
        ["golden retriever", "labrador retriever", "curly coated retriever"],
        ["Paris, France", "Lyon, France", "Nice, France"],
        [f"class {number}" for number in range(1, 12)],
        ["healthy", "None of these", "normal"],
        [str(number) for number in range(100)],
        [str(number) for number in range(1, 101)],
        ["3", "7", "9"],
        ["true", "false"],
    ],
)
def test_unambiguous_cells_are_classes(cells):
    assert set(read(cells * 9).class_names) == set(cells)


def test_cells_with_several_labels_are_read():
    labels = read(
        ["b|a", "a", " 10 | 9 ", "No Finding", "", "?"], separator="|", none="no finding", unknown=["blank", "?"]
    )
    assert labels.task == "multilabel"
    assert labels.class_names == ["9", "10", "a", "b"]
    np.testing.assert_array_equal(labels.values[:4], [[0, 0, 1, 1], [0, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
    assert labels.values.dtype == np.int8
    assert labels.is_known.tolist() == [True] * 4 + [False] * 2


@pytest.mark.parametrize("written", ["['a', 'b']", '["a", "b"]', "[“a”, “b”]", "[a, b]", "['a' 'b']", ["a", "b"]])
def test_lists_in_cells_are_read(written):
    empty = [] if isinstance(written, list) else "[]"
    labels = read([written, ["b"] if isinstance(written, list) else "['b']", empty])
    assert (labels.task, labels.class_names) == ("multilabel", ["a", "b"])
    np.testing.assert_array_equal(labels.values, [[1, 1], [0, 1], [0, 0]])


@pytest.mark.parametrize(
    ("cells", "options", "message"),
    [
        (["a|b", "", "a"], {"separator": "|"}, r"unknown: \[blank\] .* or none: \[blank\]"),
        (["a|b", "none", "a"], {"separator": "|"}, r"unknown: \[none\] .* or none: \[none\]"),
        (["a|b", "Normal", "a"], {"separator": "|"}, r"set none: \[Normal\] if .* or none: \[\] if it is a label"),
        (["a|b", "a"], {"separator": ""}, "`separator` is empty"),
        (["a|b", "a"], {"separator": "|", "task": "regression"}, "set task: multilabel"),
        ([["a"], ["b"]], {"task": "multiclass"}, "cells of the column 'label' are lists: set task: multilabel"),
        ([["a"], "b"], {}, "has a list in the column 'label', and other rows have none"),
        (['{"id": 1}', '{"id": 2}'], {}, "has a mapping in the column 'label': write a text, a number, or a list"),
        (["a", "a"], {}, "has 1 labels: a classifier needs two"),
        (
            ["a", "b", "c"],
            {"task": "binary"},
            "task is binary, and labels.csv has 3 classes, a, b, c: set task: multicl",
        ),
        (["1.5", "x"], {"task": "regression"}, "has 'x' .* write a number, or set unknown: .x."),
        (["1.5", ""], {"task": "regression"}, r"set unknown: \[blank\]"),
        (["1.5", "1.5"], {"task": "regression"}, "one number in all rows"),
        (
            ["1,000", "500"],
            {"task": "regression"},
            "'1,000', which is a thousand or one: write such numbers as 1000 or 1.000",
        ),
    ],
)
def test_cells_and_options_that_do_not_fit_are_refused(cells, options, message):
    with pytest.raises(HeatproofError, match=message):
        read(cells, **options)


def test_an_empty_option_none_makes_normal_a_label():
    assert read(["a|b", "Normal", "a"], separator="|", none=[]).class_names == ["Normal", "a", "b"]


def test_numbers_are_read_for_regression():
    labels = read(["1,5", "2", "", "-3e0"], "boneage", task="regression", unknown="blank")
    assert (labels.class_names, labels.values.dtype) == (["boneage"], np.float64)
    np.testing.assert_array_equal(labels.values[labels.is_known], [1.5, 2, -3])


@pytest.mark.parametrize(("present", "absent"), [("1.0", "0.0"), ("1", "0"), ("True", "False"), ("yes", "no")])
@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_one_column_per_class_needs_a_task(present, absent, task):
    columns = [[present, absent, absent], [absent, absent, present], [absent, present, absent], [absent] * 3]
    with pytest.raises(
        AmbiguousTableError, match=r"set task: multiclass if exactly one of them is 1 .* or task: multilabel"
    ) as caught:
        read_columns(columns)
    assert caught.value.suggested_options == {"task": "multiclass"}
    labels = read_columns(columns, task=task)
    assert labels.class_names == ["c0", "c1", "c2", "c3"]
    dense = np.array([[1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0]])
    np.testing.assert_array_equal(labels.values, dense.argmax(1) if task == "multiclass" else dense)


@pytest.mark.parametrize("cell", ["", "-1", "-1.0", "nan", "u"])
def test_cells_that_are_neither_one_nor_zero_are_refused(cell):
    columns = [["1", cell, "0"], ["0", "1", "1"]]
    option_value = {"": "blank", "-1.0": "-1"}.get(cell, cell)
    with pytest.raises(AmbiguousTableError, match=rf"unknown: \[{option_value}\] .* or none: \[{option_value}\]"):
        read_columns(columns, task="multilabel")
    np.testing.assert_array_equal(
        read_columns(columns, task="multilabel", unknown=option_value).values, [[1, 0], [-1, 1], [0, 1]]
    )
    np.testing.assert_array_equal(
        read_columns(columns, task="multilabel", none=[option_value]).values, [[1, 0], [0, 1], [0, 1]]
    )


def test_zero_can_be_unknown_as_in_pascal_voc():
    labels = read_columns([["1", "0", "-1"], ["-1", "1", "1"]], task="multilabel", none=-1, unknown=0)
    np.testing.assert_array_equal(labels.values, [[1, 0], [-1, 1], [0, 1]])


def test_a_row_without_known_labels_is_left_out():
    labels = read_columns([["1", "", "0"], ["0", "", "1"]], task="multilabel", unknown="blank")
    assert labels.is_known.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([["1", "1"], ["0", "1"]], "Row 3 of labels.csv has 2 of the classes"),
        ([["1", "0"], ["0", "0"]], "Row 3 of labels.csv has 0 of the classes"),
        ([["0.3", "1"], ["0.7", "0"]], r"has '0.3' in the column 'c0', neither 1 nor 0 .*: write 1 or 0, or set"),
    ],
)
def test_multiclass_rows_need_exactly_one_class(columns, message):
    with pytest.raises(HeatproofError, match=message):
        read_columns(columns, task="multiclass")


LOOK_ALIKE = {
    "capitals": (["Cat", "cat", "dog"], "'Cat' and 'cat', which look alike"),
    "truths": (["True", "FALSE", "true", "false"], "'FALSE' and 'false'"),
    "a blank": (["golden  retriever", "golden retriever"], "which look alike"),
    "composed": (["K\u00e4fer", "Ka\u0308fer"], r"\\u0308"),
    "a sign of no width": (["ant", "ant\u200b"], r"\\u200b"),
    "percent": (["5%", "10%", "7%"], "'10%', which is nearly a number"),
    "thousands": (["1'500", "1'501", "900"], "1'500\", which is nearly a number"),
    "without end": (["1", "2", "inf"], "'inf', which is nearly a number"),
}


@pytest.mark.parametrize("case", LOOK_ALIKE)
def test_classes_that_look_alike_or_like_numbers_are_refused(case):
    cells, message = LOOK_ALIKE[case]
    with pytest.raises(AmbiguousTableError, match=message):
        read(cells * 9)
    assert set(read(cells * 9, task="multiclass").class_names) == set(cells)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["1", "0", "0"], ["0", "1", "0"]], "lists of numbers that name no labels, such as 1, 0, 0"),
        (["[1, 0, 0]", "[0, 1, 1]"], "lists of numbers that name no labels"),
        ([["0.5", "7"], ["3"]], "lists of numbers that name no labels"),
        ([["3", "3", "17"], ["4"]], "lists of numbers that name no labels"),
        ([["['a', 'b']"], ["c"]], "Row 2 of .* list of lists"),
        (["['c']", "[['a', 'b'], ['c']]"], "Row 3 of .* list of lists"),
        ([['{"a": 1}'], ["c"]], "Row 2 of .* list of lists or of mappings"),
    ],
)
def test_lists_without_names_of_labels_are_refused(rows, message):
    with pytest.raises(HeatproofError, match=message):
        read(rows)


def test_vectors_in_cells_are_refused():
    with pytest.raises(HeatproofError, match="lists of numbers that name no labels"):
        read(["1 0 1", "0 1 1", "0 0 1"], separator=" ")
    assert read(["16 0", "7 1 2 0", "5"] * 9, separator=" ").class_names == ["0", "1", "2", "5", "7", "16"]


def test_a_label_in_a_cell_with_an_unknown_one_is_known():
    labels = read(["a|?", "a", "b", "?"], separator="|", unknown="?")
    np.testing.assert_array_equal(labels.values, [[1, -1], [1, 0], [0, 1], [-1, -1]])
    assert labels.is_known.tolist() == [True, True, True, False]


def test_a_separator_in_no_cell_is_refused_for_another():
    with pytest.raises(AmbiguousTableError, match="set separator: ';'"):
        read(["a;b", "a", "b"] * 9, separator="|")
    assert read(["a", "b"] * 9, separator="|").class_names == ["a", "b"]


def test_minus_one_and_one_can_be_classes():
    with pytest.raises(AmbiguousTableError, match=r"unknown: \[\] if it is a class") as caught:
        read(["-1", "1"] * 9)
    assert read(["-1", "1"] * 9, **caught.value.suggested_options).class_names == ["-1", "1"]


def test_the_class_na_among_blank_cells_is_refused_with_a_remedy():
    with pytest.raises(AmbiguousTableError, match="call NA something else in the table if it is a class"):
        read(["NA", "DE", "", "FR"])


@pytest.mark.parametrize("task", [None, "regression", "multiclass", "multilabel"])
def test_a_table_without_known_labels_is_refused(task):
    with pytest.raises(HeatproofError, match="no row whose label is known: correct `unknown`"):
        read(["", ""], task=task, unknown="blank")


def test_the_message_about_similar_classes_names_the_right_task():
    with pytest.raises(AmbiguousTableError, match="task: multilabel if they are two"):
        read(["Mass|Edema", "mass"], separator="|")
    assert len(read(["Mass|Edema", "mass"], separator="|", task="multilabel").class_names) == 3
    with pytest.raises(AmbiguousTableError, match="'Yes' and 'yes', which look alike"):
        read(["Yes", "no", "yes"], task="binary")
