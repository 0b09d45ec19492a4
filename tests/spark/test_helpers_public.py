"""The public names of `pulsar_retry_spark`."""

from __future__ import annotations

import importlib
import inspect

import pytest

import pulsar_retry_spark as spark_part


def test_all_is_what_is_public():
    """Two lists say what is there, one for type checkers and one for Python."""
    assert set(spark_part._MODULES) == set(spark_part.__all__)
    for name, module in spark_part._MODULES.items():
        home = importlib.import_module(f"pulsar_retry_spark.{module}")
        assert getattr(spark_part, name) is getattr(home, name)


def test_other_names_are_not_there():
    """As with any module."""
    with pytest.raises(AttributeError, match="no attribute 'sink_failures'"):
        _ = spark_part.sink_failures


@pytest.mark.parametrize("name", ["failures", "route_batches", "split", "write_failures"])
def test_arguments_beyond_two_have_names(name):
    """So that one more can be added anywhere; and nothing is swallowed."""
    parameters = list(inspect.signature(getattr(spark_part, name)).parameters.values())

    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters[2:])
    assert not [each for each in parameters if each.kind is inspect.Parameter.VAR_KEYWORD]
