"""A tiny random Llama for the servers: the one of `tools/engine`, as a folder for transformers and MLX, and as GGUF.

Every token is one character, so that a text and its tokens say the same: nothing is lost where a server returns text
alone. Both files hold the same weights: the servers claim the same distributions, up to rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from engine.inside import HEAD_SIZE, HEADS, HIDDEN, LAYERS, files_of, weights, write_model

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CHARACTERS = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))
"""All of ASCII that is printed."""

VOCAB = ("<s>", "</s>", *CHARACTERS)
BOS, EOS = 0, 1
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
CONTEXT = 2048


def tiny_weights(vocab_size: int = len(VOCAB), layers: int = LAYERS) -> dict[str, np.ndarray]:
    """The engine's, with special tokens that are rare: their logit is 0, those of characters have a spread of 2.

    Args:
        layers: 1 for a drafter: the same model without its last layer, which agrees with it often, not always.
    """
    tensors = dict(weights(vocab_size))
    tensors["lm_head.weight"][[BOS, EOS]] = 0.0
    return {name: tensor for name, tensor in tensors.items() if not _beyond(name, layers)}


def _beyond(name: str, layers: int) -> bool:
    return name.startswith("model.layers.") and int(name.split(".")[2]) >= layers


def write_folder(folder: Path, layers: int = LAYERS, *, sampling: bool = False, lookup: int = 0) -> None:
    """Write the model, and a tokenizer of characters.

    Args:
        sampling: Write a generation_config.json that turns sampling on, without filters.
        lookup: Tokens that transformers drafts from the text.
    """
    special, files = {"bos_token": VOCAB[BOS], "eos_token": VOCAB[EOS]}, files_of(len(VOCAB))
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    files["config"] |= {"num_hidden_layers": layers, "max_position_embeddings": CONTEXT}
    files["tokenizer"] |= {
        "added_tokens": [{"id": token, "content": VOCAB[token], "special": True, **plain} for token in (BOS, EOS)],
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(VOCAB)}, "unk_token": VOCAB[BOS]},
    }
    files["tokenizer_config"] |= {**special, "chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": False}
    if sampling:
        files["generation_config"] = {"do_sample": True, "top_k": 0, "bos_token_id": BOS, "eos_token_id": EOS}
        files["generation_config"] |= {"pad_token_id": EOS, **({"prompt_lookup_num_tokens": lookup} if lookup else {})}
    write_model(folder, tiny_weights(layers=layers), files)


def write_gguf(path: Path, layers: int = LAYERS) -> None:
    """One file for llama.cpp, some 350 kB, float32."""
    from gguf import GGUFWriter, TokenType

    path.parent.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(2 * HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_vocab_size(len(VOCAB))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([{"\n": "Ċ", " ": "Ġ"}.get(word, word) for word in VOCAB])  # as GPT-2 writes these bytes
    writer.add_token_types([TokenType.CONTROL, TokenType.CONTROL, *[TokenType.NORMAL] * len(CHARACTERS)])
    writer.add_token_merges(["a a"])  # there must be one, and this one makes no token
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, tensor in gguf_tensors(tiny_weights(layers=layers)).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
"""Of transformers, and of GGUF."""


def gguf_tensors(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same under llama.cpp's names; rotary halves are interleaved there."""
    renamed = {}
    for name, tensor in tensors.items():
        place, part = "", name.removesuffix(".weight")
        if name.startswith("model.layers."):
            layer, part = part.removeprefix("model.layers.").split(".", 1)
            place = f"blk.{layer}."
        rotary = part in ("self_attn.q_proj", "self_attn.k_proj")
        renamed[f"{place}{NAMES[part]}.weight"] = interleaved(tensor) if rotary else tensor
    return renamed


def interleaved(matrix: np.ndarray) -> np.ndarray:  # [heads * head_size, hidden]
    """Rows `i` and `i + half` of a head become neighbours."""
    halves = matrix.reshape(HEADS, 2, HEAD_SIZE // 2, matrix.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(matrix.shape))
