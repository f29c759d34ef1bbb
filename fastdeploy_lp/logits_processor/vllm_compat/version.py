"""The release of vLLM whose interface the stand-ins have."""

# The local part says that it is none of vLLM's own builds.
__version__ = "0.32.0+fastdeploy.lp"
__version_tuple__ = (0, 32, 0, "fastdeploy.lp")
