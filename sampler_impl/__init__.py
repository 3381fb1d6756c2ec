"""Production samplers: what an inference engine runs, and what the suite was first built for. Imports nothing of it.

Each contract has one public module:

    rejection           speculative decoding's verification, a drop-in for vLLM 0.22.0's `rejection_sample`
    rejection_counter   the same step with counter noise, from the model's own logits: the fast path
    step                the whole step in one call: every parameter of a request, verification or plain sampling
    sampling            plain sampling and drafting
    penalties           repetition, frequency and presence penalties
    thinking_budget     a limit on thinking tokens
    grammar             bitmasks on logits, and grammars forked over drafts
    logits_plan         vLLM's logits processors as one plan
    logprobs            log-probabilities, ranks and lists of the most probable tokens
    vllm_plugin         installs the samplers above into a running vLLM

Everything else is private: `_rejection/`, `_counter/`, `_step/`, `_sampling/` and `_logprobs/` hold the parts of one
contract, `_shared/` what several of them use.
"""
