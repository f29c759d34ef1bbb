"""The C structures of the compiled operators, field by field."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p


class SectionStruct(ctypes.Structure):
    """`Section`: its first panel, `WeightFormat`, packed weights."""

    _fields_ = (("first_panel", c_int32), ("format", c_int32), ("packed", c_void_p))


MAX_SECTIONS = 3


class LinearStruct(ctypes.Structure):
    """`Linear`: sizes, digits of activations, sections of packed weights, bias or null, bfloat16."""

    _fields_ = (
        ("in_features", c_int32),
        ("out_features", c_int32),
        ("digits", c_int32),
        ("num_sections", c_int32),
        ("sections", SectionStruct * MAX_SECTIONS),
        ("bias", c_void_p),
        ("bfloat16", c_int32),
    )


class CacheStruct(ctypes.Structure):
    """`Cache`: the shape of every layer's key and value blocks."""

    _fields_ = (("block_size", c_int32), ("kv_heads", c_int32), ("head_dim", c_int32), ("half", c_int32))


class LayerStruct(ctypes.Structure):
    """`Layer`: one decoder layer's weights and cache."""

    _fields_ = (
        ("qkv", LinearStruct),
        ("o", LinearStruct),
        ("gate_up", LinearStruct),
        ("down", LinearStruct),
        ("input_norm", c_void_p),
        ("post_attention_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
    )


class ModelStruct(ctypes.Structure):
    """`Model`: everything that stays the same between passes."""

    _fields_ = (
        ("num_layers", c_int32),
        ("hidden_size", c_int32),
        ("intermediate_size", c_int32),
        ("num_heads", c_int32),
        ("vocab_size", c_int32),
        ("max_context", c_int32),
        ("eps", c_float),
        ("attention_scale", c_float),
        ("cache", CacheStruct),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("embedding", LinearStruct),
        ("norm", c_void_p),
        ("head", LinearStruct),
        ("layers", POINTER(LayerStruct)),
    )


class BatchStruct(ctypes.Structure):
    """`Batch`: one pass over packed tokens."""

    _fields_ = (
        ("tokens", c_int32),
        ("sequences", c_int32),
        ("rows", c_int32),
        ("table_width", c_int32),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("query_starts", c_void_p),
        ("block_tables", c_void_p),
        ("output_rows", c_void_p),
    )


class FaultStruct(ctypes.Structure):
    """`Fault`: the reason why a row could not be packed (`csrc/decoder/stored_rows.h`), 0 for none, and its number."""

    _fields_ = (("reason", c_int32), ("row", c_int32))


class AdditionsStruct(ctypes.Structure):
    """`Additions`: how many, their places in the logits (int64), and the values (float32)."""

    _fields_ = (("count", c_int64), ("places", c_void_p), ("values", c_void_p))
