from setuptools import setup

setup(
    name="example_vllm_decoder",
    version="0.1",
    packages=["my_decoder"],
    entry_points={"fastdeploy_lp.logits_processors": ["my_decoder=my_decoder.processor:TargetTokenProcessor"]},
)
