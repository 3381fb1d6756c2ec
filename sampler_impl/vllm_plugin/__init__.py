"""A vLLM plugin: replaces vLLM's samplers by fairdraw's, where the suite has validated them.

It is installed with fairdraw and off until `FAIRDRAW_VLLM_PLUGIN=1`; `docs/vllm-plugin.md` is its manual. It replaces
these functions, each with a switch of its own,

    rejection            rejection_sample                        ../rejection.py
    penalties tensor     the padded tensor of output tokens      PaddedOutputs in ../penalties.py
    penalties            the counts behind the penalties         Penalties in ../penalties.py
    thinking budget      the search for the end of thinking      ../thinking_budget.py
    step                 the whole step of model runner V2       ../step.py, equal in distribution

and nothing else. In the order in which it happens:

    register             vLLM calls it in every process; imports neither torch nor vLLM      _plugin.py
    wait                 until vLLM has imported what is to be patched                       _hook.py
    check                release and source of every function, against validated.json        _validated.py, _source.py
    patch                the attribute, and every name it was imported under                 _patch.py, _pieces.py
    serve                calls that ours supports; any other goes to vLLM's own code         _rejection.py and others

V2's piece is checked and patched when vLLM makes a V2 runner (_model_runner.py).
"""

from __future__ import annotations

from ._calls import calls
from ._plugin import installed, register, unpatch

__all__ = ["calls", "installed", "register", "unpatch"]
