"""The vLLM release whose interface the stand-ins have."""

# The local part shows that this is not a build of vLLM.
__version__ = "0.32.0+fastdeploy.lp"
__version_tuple__ = (0, 32, 0, "fastdeploy.lp")
