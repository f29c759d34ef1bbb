"""The version has one home."""

from importlib.metadata import version

import fastdeploy_lp


def test_the_installed_distribution_carries_the_packages_version() -> None:
    assert version("fastdeploy-lp") == fastdeploy_lp.__version__
