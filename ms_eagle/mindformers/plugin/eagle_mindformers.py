"""What ``auto_register: eagle_mindformers.EagleConfig`` in a MindFormers YAML file names.

MindFormers imports the module from the directory in REGISTER_PATH (``run_mindformer.py --register_path``):
set it to the directory of this file, which ``ms_eagle.mindformers.plugin.DIRECTORY`` names.
"""

from ms_eagle.mindformers import EagleConfig, EagleForCausalLM

__all__ = ["EagleConfig", "EagleForCausalLM"]
