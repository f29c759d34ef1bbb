"""Stand-ins for the vLLM modules that third-party processor packages import, for `--vllm-compat` without vLLM.

They hold what a logits processor uses, on this server's objects. What vLLM has beyond that is not there, so that an
import of it fails where it is written.
"""

from fastdeploy_lp.logits_processor.vllm_compat.installation import install, stand_ins_are_installed

__all__ = ["install", "stand_ins_are_installed"]
