from setuptools import setup

setup(
    name="example_logits_processor",
    version="0.1",
    packages=["example_plugin"],
    install_requires=["pydantic>=1.8.2"],
    entry_points={"fastdeploy_lp.logits_processors": ["example_plugin=example_plugin.main:LOGITS_PROCESSOR_PLUGIN"]},
)
