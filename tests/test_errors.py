"""One error tree, one promise: every class pickles, keeps its fields and its cause, and reads as one sentence."""

import pickle

import pytest

import hurray_wire as hw
from hurray_wire import errors

CLASSES = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_a_hurray_error_and_pickles_with_its_fields_and_cause(kind):
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise kind("a thing is wrong", rule="area.rule", offset=7, declared=3, found=4) from inner
    except hw.HurrayError as error:
        copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.rule, copy.offset, copy.declared, copy.found) == ("area.rule", 7, 3, 4)
    assert isinstance(copy.__cause__, KeyError)
    assert str(copy) == "a thing is wrong (at byte 7, rule area.rule)"


class UnpicklableError(Exception):
    def __reduce__(self):
        raise TypeError("stays here")


def test_a_cause_that_cannot_travel_leaves_its_words():
    error = hw.InvalidFileError("outer")
    error.__cause__ = UnpicklableError("the reason")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy.__cause__) == "UnpicklableError: the reason"


@pytest.mark.parametrize(
    ("kind", "also"),
    [
        (hw.InvalidDescriptorError, ValueError),
        (hw.InvalidFileError, ValueError),
        (hw.TruncatedError, hw.InvalidFileError),
        (hw.ChecksumError, hw.InvalidFileError),
        (hw.BufferSizeError, ValueError),
        (hw.UnsupportedError, NotImplementedError),
    ],
)
def test_errors_are_also_the_builtin_kind_that_a_caller_expects(kind, also):
    assert issubclass(kind, also)
    assert issubclass(kind, hw.HurrayError)


def test_an_error_without_place_or_rule_is_its_message_alone():
    assert str(hw.StreamError("it ends")) == "it ends"
