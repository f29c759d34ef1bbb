"""What a plugin's code says of the releases that it is for."""

from __future__ import annotations

import pytest

from fastdeploy_lp.plugins import IncompatibleVersionError, require_version, requires_version
from fastdeploy_lp.version import __version__

MET = [f"=={__version__}", f">={__version__}", f"<={__version__}", ">=0.0.1,<99", ""]
UNMET = [">=99", "<0.0.1", f"!={__version__}", f">{__version__}"]


@pytest.mark.parametrize("specifier", MET)
def test_a_release_that_is_asked_for(specifier: str) -> None:
    require_version(specifier)
    assert requires_version(specifier)(lambda x, y=0: (x, y))(1, y=2) == (1, 2)


@pytest.mark.parametrize("specifier", UNMET)
def test_a_release_that_is_not_asked_for(specifier: str) -> None:
    ran = []
    function = requires_version(specifier)(lambda: ran.append(None))
    for attempt in (function, lambda: require_version(specifier)):
        with pytest.raises(IncompatibleVersionError, match=f"this is {__version__}; install a release of") as caught:
            attempt()
        assert specifier in str(caught.value)
    assert ran == []


def test_the_decorated_function_keeps_its_name() -> None:
    @requires_version(">=0.0.1")
    def register() -> None:
        """What it does."""

    assert (register.__name__, register.__doc__) == ("register", "What it does.")


@pytest.mark.parametrize("text", ["1.0", "=> 1", "latest", ">=1;<2"])
def test_a_text_that_is_no_specifier_is_an_error_at_once(text: str) -> None:
    with pytest.raises(ValueError, match="is no version specifier; write one such as"):
        require_version(text)
    with pytest.raises(ValueError, match="is no version specifier"):
        requires_version(text)


def test_a_class_is_told_what_to_write_instead() -> None:
    class Logger:
        pass

    with pytest.raises(TypeError, match=r"Logger is a class; call require_version\('>=1'\) where its module begins"):
        requires_version(">=1")(Logger)
