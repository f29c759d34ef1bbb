"""Stand-ins for the vLLM modules that third-party processor packages import, for `--vllm-compat` without vLLM.

They hold the names that logits processors use, on this server's objects. The import of any other vLLM name raises an
import error.
"""

from fastdeploy_lp.logits_processor.vllm_compat.installation import install, stand_ins_are_installed

__all__ = ["install", "stand_ins_are_installed"]
