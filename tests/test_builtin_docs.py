"""The tables of builtins in docs/builtin-processors.md against the code."""

from __future__ import annotations

import re

import pytest
from support.server import REPOSITORY

from fastdeploy_lp.logits_processor import BUILTIN, load_processors

DOCUMENT = (REPOSITORY / "docs" / "builtin-processors.md").read_text()
ROWS = re.findall(r"^\| `(\w+LogitsProcessor)` \|([^|]*)\|", DOCUMENT, re.MULTILINE)
DOCUMENTED = {name: arguments for name, arguments in ROWS if "**" in arguments}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_row_names_the_arguments_of_its_processor_and_the_one_that_is_needed(name: str) -> None:
    assert name in BUILTIN
    (processor,) = load_processors([name])
    assert processor.params_model is not None
    fields = processor.params_model.model_fields
    assert re.findall(r"`(\w+)`", DOCUMENTED[name]) == list(fields)
    assert re.findall(r"\*\*`(\w+)`\*\*", DOCUMENTED[name]) == [
        argument for argument, field in fields.items() if field.is_required()
    ]


def test_there_is_a_row_for_every_builtin_that_works_on_words() -> None:
    assert len(DOCUMENTED) == len([name for name, arguments in ROWS if "**" in arguments]) == 10
