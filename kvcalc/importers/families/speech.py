"""Encoders and decoders of speech: a spectrogram or text in, text or codes of sound out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Block, Cross, Encoder, Full, Gated, Head, Table
from kvcalc.core.units import MILLISECOND, ceil_div
from kvcalc.importers.families.encoder import bart_block, input_note
from kvcalc.importers.families.shape import Shape, attention_biases, head_width, mlp, mlp_biases, refuse
from kvcalc.importers.wrappers import inner_config

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]

# Width of the convolutions behind Moonshine Streaming's frames.
_STREAM_KERNEL = 5
# The image of a line of text that TrOCR's published encoders read: 24 x 24 patches and a class token.
_LINE_TOKENS = 577


def speech_to_text(config: Config) -> Shape:
    """Speech2Text: convolutions that halve the spectrogram, then BART's stacks with computed positions."""
    hidden, count = config.integer("d_model"), config.integer("num_conv_layers")
    kernels = config.integers("conv_kernel_sizes", length=count)
    middle = config.integer("conv_channels")
    # each convolution has a gate beside its output, so that half of its channels go on
    inputs = config.integer("input_feat_per_channel") * config.integer("input_channels", default=1)
    widths = [inputs, *[middle // 2] * (count - 1)]
    outputs = [*[middle] * (count - 1), 2 * hidden]
    convolved = sum(a * b * kernel for a, b, kernel in zip(widths, outputs, kernels, strict=True))
    frames = ceil_div(config.integer("max_source_positions"), 2**count)
    vocabulary = config.integer("vocab_size")
    decoder = bart_block(config, "decoder", hidden, encoder_tokens=frames)
    return Shape(
        hidden_size=hidden,
        context_limit=config.integer("max_target_positions"),
        blocks=(decoder,) * config.integer("decoder_layers"),
        embeddings=(Table(name="token", rows=vocabulary, width=hidden),),
        head=Head(rows=vocabulary, tied=config.flag("tie_word_embeddings", default=True)),
        encoder=Encoder(
            hidden_size=hidden,
            blocks=(bart_block(config, "encoder", hidden, encoder_tokens=0),) * config.integer("encoder_layers"),
            tokens=frames,
            matrix_parameters=convolved,
            vector_parameters=sum(outputs) + 2 * hidden,
        ),
        vector_parameters=2 * hidden,
        notes=(input_note(frames, "frames"),),
    )


def _fast_conformer(config: Config) -> Encoder:
    """Return Parakeet's encoder: separable convolutions that subsample the spectrogram, then conformer layers.

    Source: Rekesh et al. 2023, arXiv 2305.05084.
    """
    hidden, query = config.integer("hidden_size"), config.integer("num_attention_heads")
    inner, kernel = config.integer("intermediate_size"), config.integer("conv_kernel_size")
    channels, square = config.integer("subsampling_conv_channels"), config.integer("subsampling_conv_kernel_size") ** 2
    factor, stride = config.integer("subsampling_factor"), config.integer("subsampling_conv_stride")
    if stride != 2 or factor & (factor - 1):  # noqa: PLR2004  halves
        raise refuse(config, "subsampling_factor", "an encoder that subsamples otherwise than by halves")
    bins, halves = config.integer("num_mel_bins"), factor.bit_length() - 1
    for _ in range(halves):
        bins = ceil_div(bins, 2)
    bias = config.flag("attention_bias", default=True)
    convolution_bias = config.flag("convolution_bias", default=True)
    vectors = attention_biases(query, query, hidden // query, hidden, inputs=bias, output=bias)
    vectors += 2 * hidden + 2 * (mlp_biases(inner, hidden, gated=False) if bias else 0)
    vectors += kernel * hidden + 2 * hidden + (4 * hidden if convolution_bias else 0) + 10 * hidden
    layer = Block(
        name="conformer",
        mixers=(Full(heads=query, kv_heads=query, head_dim=head_width(config, hidden, query)),),
        mlp=mlp(inner, gated=False),
        matrix_parameters=2 * hidden * inner + 4 * hidden * hidden,
        vector_parameters=vectors,
    )
    front = channels * square + (halves - 1) * (channels * square + channels * channels) + channels * bins * hidden
    return Encoder(
        hidden_size=hidden,
        blocks=(layer,) * config.integer("num_hidden_layers"),
        tokens=config.integer("max_position_embeddings"),
        matrix_parameters=front,
        vector_parameters=(2 * halves - 1) * channels + hidden,
    )


def _transcriber(config: Config, decoder: Config, *, positions: bool, tied: bool) -> Shape:
    """Return a decoder of text over a conformer's output, with a norm on its embeddings and a head with a bias."""
    encoder = _fast_conformer(inner_config(config, "encoder_config", "parakeet_encoder"))
    hidden, query = decoder.integer("hidden_size"), decoder.integer("num_attention_heads")
    kv, width = decoder.integer_or(query, "num_key_value_heads"), head_width(decoder, hidden, query, "head_dim")
    inner, bias = decoder.integer("intermediate_size"), decoder.flag("attention_bias", default=True)
    biases = attention_biases(query, kv, width, hidden, inputs=bias, output=bias)
    cross = Cross(heads=query, kv_heads=kv, head_dim=width, encoder_tokens=encoder.tokens)
    block = Block(
        name="decoder",
        mixers=(Full(heads=query, kv_heads=kv, head_dim=width), cross),
        mlp=mlp(inner, gated=False),
        vector_parameters=2 * biases + mlp_biases(inner, hidden, gated=False) + 6 * hidden,
    )
    rows, limit = config.integer("vocab_size"), decoder.integer("max_position_embeddings")
    token, position = Table(name="token", rows=rows, width=hidden), Table(name="position", rows=limit, width=hidden)
    return Shape(
        hidden_size=hidden,
        context_limit=limit,
        blocks=(block,) * decoder.integer("num_hidden_layers"),
        embeddings=(token, position) if positions else (token,),
        head=Head(rows=rows, tied=tied, bias=True),
        encoder=encoder,
        vector_parameters=4 * hidden,
        notes=(input_note(encoder.tokens, "frames"),),
    )


def canary(config: Config) -> Shape:
    """Canary: computed positions, and a decoder as wide as its encoder."""
    decoder = inner_config(config, "decoder_config", "canary_decoder")
    return _transcriber(config, decoder, positions=False, tied=config.flag("tie_word_embeddings", default=True))


def cohere_asr(config: Config) -> Shape:
    """Cohere Transcribe: a table of positions, and a map from the encoder's width to the decoder's."""
    tied = config.flag("tie_word_embeddings", default=False)
    shape = _transcriber(config, config, positions=True, tied=tied)
    hidden = shape.hidden_size
    joined = hidden * shape.encoder.hidden_size if shape.encoder else 0
    return replace(shape, matrix_parameters=joined, vector_parameters=shape.vector_parameters + hidden)


def dia(config: Config) -> Shape:
    """Dia: an encoder of characters; the decoder reads and writes a code of each channel of sound at once."""
    encoder = inner_config(config, "encoder_config", "dia_encoder")
    decoder = inner_config(config, "decoder_config", "dia_decoder")
    hidden, inputs = decoder.integer("hidden_size"), encoder.integer("hidden_size")
    tokens = encoder.integer("max_position_embeddings")
    own, whole = (
        Full(
            heads=side.integer("num_attention_heads"),
            kv_heads=side.integer("num_key_value_heads"),
            head_dim=side.integer("head_dim"),
        )
        for side in (encoder, decoder)
    )
    cross = Cross(
        heads=decoder.integer("cross_num_attention_heads"),
        kv_heads=decoder.integer("cross_num_key_value_heads"),
        head_dim=decoder.integer("cross_head_dim"),
        encoder_tokens=tokens,
        encoder_inputs=decoder.integer("cross_hidden_size"),
    )
    channels = decoder.integer("num_channels")
    rows = channels * decoder.integer("vocab_size")
    block = Block(
        name="decoder",
        mixers=(whole, cross),
        mlp=Gated(width=decoder.integer("intermediate_size")),
        vector_parameters=3 * hidden,
    )
    layer = Block(
        name="encoder",
        mixers=(own,),
        mlp=Gated(width=encoder.integer("intermediate_size")),
        vector_parameters=2 * inputs,
    )
    return Shape(
        hidden_size=hidden,
        context_limit=decoder.integer("max_position_embeddings"),
        blocks=(block,) * decoder.integer("num_hidden_layers"),
        embeddings=(Table(name="code", rows=rows, width=hidden),),
        head=Head(rows=rows),
        encoder=Encoder(
            hidden_size=inputs,
            blocks=(layer,) * encoder.integer("num_hidden_layers"),
            tokens=tokens,
            embeddings=(Table(name="token", rows=encoder.integer("vocab_size"), width=inputs),),
            vector_parameters=inputs,
        ),
        vector_parameters=hidden,
        notes=(input_note(tokens, "characters"), f"a token is a code of each of {channels} channels"),
    )


def speecht5(config: Config) -> Shape:
    """SpeechT5 from speech to text: wav2vec 2.0's encoder with keys of relative positions, a decoder as BART's."""
    hidden, limit = config.integer("hidden_size"), config.integer("max_text_positions")
    widths = config.integers("conv_dim")
    kernels = config.integers("conv_kernel", length=len(widths))
    before = [1, *widths[:-1]]
    convolved = sum(a * b * kernel for a, b, kernel in zip(before, widths, kernels, strict=True))
    bias = sum(widths) if config.flag("conv_bias", default=False) else 0
    groups, reach = config.integer("num_conv_pos_embedding_groups"), config.integer("num_conv_pos_embeddings")
    config.choice(config.text("feat_extract_norm"), ("group",), key="feat_extract_norm", what="the norm")
    front = 2 * widths[0] + 2 * widths[-1] + 3 * hidden + reach + hidden * reach * (hidden // groups)
    side = config.integer("encoder_attention_heads")
    relative = 2 * config.integer("encoder_max_relative_position") * head_width(config, hidden, side)
    # frames of the longest input: 20 ms each
    frames, rows = config.integer("max_speech_positions"), config.integer("vocab_size")
    decoder = bart_block(config, "decoder", hidden, encoder_tokens=frames)
    return Shape(
        hidden_size=hidden,
        context_limit=limit,
        blocks=(decoder,) * config.integer("decoder_layers"),
        embeddings=(Table(name="token", rows=rows, width=hidden),),
        head=Head(rows=rows, tied=config.flag("tie_word_embeddings", default=True)),
        encoder=Encoder(
            hidden_size=hidden,
            blocks=(bart_block(config, "encoder", hidden, encoder_tokens=0),) * config.integer("encoder_layers"),
            tokens=frames,
            matrix_parameters=convolved + widths[-1] * hidden,
            vector_parameters=front + bias + relative + 2 * hidden,
        ),
        notes=(input_note(frames, "frames"), "from speech to text: the speech decoder is not counted"),
    )


def moonshine_streaming(config: Config) -> Shape:
    """Moonshine Streaming: windows over the sound, computed frames, a gated MLP with biases in the decoder.

    The encoder's output gets learned positions before the decoder reads it.
    """
    side = inner_config(config, "encoder_config", "moonshine_streaming_encoder")
    wide, query = side.integer("hidden_size"), side.integer("num_attention_heads")
    kv, width = side.integer("num_key_value_heads"), head_width(side, wide, query, "head_dim")
    bias, inner = side.flag("attention_bias", default=False), side.integer("intermediate_size")
    layer = Block(
        name="encoder",
        mixers=(Full(heads=query, kv_heads=kv, head_dim=width),),
        mlp=mlp(inner, gated=False),
        vector_parameters=attention_biases(query, kv, width, wide, inputs=bias, output=bias)
        + mlp_biases(inner, wide, gated=False)
        + 2 * wide,
    )
    frame = round(side.integer("sample_rate") * side.number("frame_ms") * MILLISECOND)
    tokens, limit = side.integer("max_position_embeddings"), config.integer("max_position_embeddings")
    encoder = Encoder(
        hidden_size=wide,
        blocks=(layer,) * side.integer("num_hidden_layers"),
        tokens=tokens,
        embeddings=(Table(name="position", rows=limit, width=wide),),
        matrix_parameters=frame * wide + 2 * _STREAM_KERNEL * 2 * wide * wide,
        vector_parameters=1 + 3 * wide + wide,
    )
    return _moonshine_decoder(config, encoder, limit)


def _moonshine_decoder(config: Config, encoder: Encoder, limit: int) -> Shape:
    hidden, query = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv, width = config.integer_or(query, "num_key_value_heads"), head_width(config, hidden, query, "head_dim")
    bias, inner = config.flag("attention_bias", default=False), config.integer("intermediate_size")
    cross = Cross(heads=query, kv_heads=kv, head_dim=width, encoder_tokens=encoder.tokens, encoder_inputs=hidden)
    biases = attention_biases(query, kv, width, hidden, inputs=bias, output=False)
    block = Block(
        name="decoder",
        mixers=(Full(heads=query, kv_heads=kv, head_dim=width), cross),
        mlp=mlp(inner),
        vector_parameters=2 * biases + mlp_biases(inner, hidden) + 3 * hidden,
    )
    rows = config.integer("vocab_size")
    return Shape(
        hidden_size=hidden,
        context_limit=limit,
        blocks=(block,) * config.integer("num_hidden_layers"),
        embeddings=(Table(name="token", rows=rows, width=hidden),),
        head=Head(rows=rows, tied=config.flag("tie_word_embeddings", default=False)),
        encoder=encoder,
        matrix_parameters=hidden * encoder.hidden_size if hidden != encoder.hidden_size else 0,
        vector_parameters=hidden,
        notes=(input_note(encoder.tokens, "frames"),),
    )


def trocr(config: Config) -> Shape:
    """TrOCR's decoder: BART's, over the patches of an image whose encoder has a config of its own."""
    hidden, limit = config.integer("d_model"), config.integer("max_position_embeddings")
    inputs = config.integer_or(hidden, "cross_attention_hidden_size")
    block = bart_block(config, "decoder", hidden, encoder_tokens=_LINE_TOKENS)
    mixers = tuple(replace(part, encoder_inputs=inputs) if isinstance(part, Cross) else part for part in block.mixers)
    rows = config.integer("vocab_size")
    tables = [Table(name="token", rows=rows, width=hidden)]
    if config.flag("use_learned_position_embeddings", default=True):
        tables.append(Table(name="position", rows=limit + 2, width=hidden))
    normed = config.flag("layernorm_embedding", default=True)
    return Shape(
        hidden_size=hidden,
        context_limit=limit,
        blocks=(replace(block, mixers=mixers),) * config.integer("decoder_layers"),
        embeddings=tuple(tables),
        head=Head(rows=rows, tied=config.flag("tie_word_embeddings", default=True)),
        vector_parameters=2 * hidden if normed else 0,
        notes=(input_note(_LINE_TOKENS, "patches"), "the encoder of images is not part of this config"),
    )


RULES: dict[str, Rule] = {
    "canary": canary,
    "cohere_asr": cohere_asr,
    "dia": dia,
    "moonshine_streaming": moonshine_streaming,
    "speech_to_text": speech_to_text,
    "speecht5": speecht5,
    "trocr": trocr,
}
