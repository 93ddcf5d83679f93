"""Decoders over codes or latent vectors of sound: Moshi, Kyutai's transcriber, CSM, Pocket TTS."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Dense, Gated, Head, Table
from kvcalc.importers.families.dense import llama
from kvcalc.importers.families.shape import Shape, attention_biases, decoder_shape, heads, refuse, stack, windowed
from kvcalc.importers.wrappers import inner_config

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]


def moshi(config: Config) -> Shape:
    """Moshi's text model: a window in every layer, an MLP whose width counts gate and up together.

    Source: Défossez et al. 2024, arXiv 2410.00037.
    """
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    query, kv, width = heads(config, hidden=hidden)
    mixer = windowed(query, kv, width, config.maybe_integer("sliding_window"))
    feed = Gated(width=config.integer("ffn_dim") // 2)
    blocks = stack([(mixer, 0)] * layers, [(feed, 0)] * layers, norms=2 * hidden)
    shape = decoder_shape(config, blocks, hidden=hidden)
    rows = shape.embeddings[0].rows
    # one row more, for a text that has not begun
    return replace(shape, embeddings=(Table(name="token", rows=rows + 1, width=hidden),), head=Head(rows=rows))


def kyutai_stt(config: Config) -> Shape:
    """Kyutai's transcriber: Moshi's layers over the sum of a word and a code of each codebook."""
    shape = moshi(config)
    rows, hidden = shape.embeddings[0].rows, shape.hidden_size
    codes = config.integer("num_codebooks") * config.integer("codebook_vocab_size")
    head = Head(rows=config.integer("vocab_size"))
    if config.flag("tie_word_embeddings", default=False):
        raise refuse(config, "tie_word_embeddings", "a head that is the table of words and codes")
    return replace(shape, embeddings=(Table(name="token", rows=rows + codes, width=hidden),), head=head)


def pocket_tts(config: Config) -> Shape:
    """Pocket TTS: latent vectors of sound instead of codes, which a flow head writes from the last hidden state.

    The head is counted as one pass of it a token; it has a small network that only training uses. There are no logits.
    """
    hidden, latent = config.integer("hidden_size"), config.integer("latent_dim")
    return _latent_speaker(config, hidden, prompt=latent, latent=latent)


def gradium_tts(config: Config) -> Shape:
    """Gradium Phonon: as `pocket_tts`, told also how many speak and how long."""
    hidden, latent = config.integer("hidden_size"), config.integer("latent_dim")
    shape = _latent_speaker(config, hidden, prompt=config.integer("audio_prompt_dim"), latent=latent)
    speakers = config.integer("num_speakers_embedding_dim")
    table = Table(name="speakers", rows=config.integer("num_speakers_vocab_size"), width=speakers)
    conditioned = hidden * (speakers + config.integer("duration_delta_embedding_dim"))
    matrices = shape.matrix_parameters + conditioned
    return replace(shape, embeddings=(*shape.embeddings, table), matrix_parameters=matrices)


def _latent_speaker(config: Config, hidden: int, *, prompt: int, latent: int) -> Shape:
    """Return Llama-like layers with layer norms and an MLP of two matrices, and the flow head behind them."""
    query, kv, width = heads(config, hidden=hidden)
    bias = config.flag("attention_bias", default=False)
    vectors = attention_biases(query, kv, width, hidden, inputs=bias, output=bias)
    feed, layers = Dense(width=config.integer("intermediate_size")), config.integer("num_hidden_layers")
    blocks = stack([(windowed(query, kv, width, None), vectors)] * layers, [(feed, 0)] * layers, norms=4 * hidden)
    head, head_vectors = _flow_head(config.child("flow_head_config"), hidden, latent)
    shape = decoder_shape(
        config,
        blocks,
        hidden=hidden,
        vectors=2 * hidden + latent + head_vectors + 1,
        matrices=hidden * (prompt + latent) + head + hidden,
        notes=(
            "a token is a frame of sound; the flow head is counted as one pass a token, the codec is another model",
        ),
    )
    return replace(shape, head=None)


def _flow_head(config: Config, hidden: int, latent: int) -> tuple[int, int]:
    """Return matrix and vector elements of the network that turns noise into a latent vector."""
    wide, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    frequencies = config.integer("frequency_embedding_size")
    matrices = wide * (latent + hidden) + 2 * (frequencies * wide + wide * wide)
    matrices += layers * 5 * wide * wide + 2 * wide * wide + wide * latent
    vectors = 2 * wide + 2 * 3 * wide + layers * 7 * wide + 2 * wide + latent
    loss, depth = config.integer("loss_weighting_hidden_size"), config.integer("loss_weighting_num_layers")
    vectors += 2 * loss + (depth - 1) * loss * loss + depth * loss + loss + 1
    return matrices, vectors


def higgs_audio(config: Config) -> Shape:
    """Higgs Audio 2: Llama whose layers have norms and an MLP of their own for tokens of sound; it writes only these.

    Those norms and MLP stand beside the text's: a token passes one of the two.
    """
    shape, hidden = llama(config), config.integer("hidden_size")
    if config.flag("mlp_bias", default=False):
        raise refuse(config, "mlp_bias", "a Higgs Audio with biases in its MLPs")
    inner, rows = config.integer("intermediate_size"), config.integer("num_codebooks") * config.integer("codebook_size")
    table = Table(name="text-mlp", rows=len(shape.blocks) * 3 * inner, width=hidden)
    blocks = tuple(replace(block, vector_parameters=block.vector_parameters + 2 * hidden) for block in shape.blocks)
    code = Table(name="code", rows=rows, width=hidden)
    return replace(shape, blocks=blocks, embeddings=(*shape.embeddings, code, table), head=Head(rows=rows))


def csm(config: Config) -> Shape:
    """CSM: Llama's layers over words and codes of sound; the codes' table is that of the depth decoder.

    The head gives the first code of a frame, the depth decoder the others; its cache is made anew for each frame.
    """
    shape = llama(config)
    depth = inner_config(config, "depth_decoder_config", "csm_depth_decoder_model")
    rows, hidden = config.integer("vocab_size"), shape.hidden_size
    words = Table(name="text", rows=config.integer("text_vocab_size"), width=hidden)
    codes = config.integer("num_codebooks") * rows
    sound = Table(name="code", rows=codes, width=depth.integer("backbone_hidden_size"))
    return replace(shape, embeddings=(words, sound), head=Head(rows=rows))


RULES: dict[str, Rule] = {
    "csm": csm,
    "gradium_phonon_tts": gradium_tts,
    "higgs_audio_v2": higgs_audio,
    "kyutai_speech_to_text": kyutai_stt,
    "moshi": moshi,
    "pocket_tts": pocket_tts,
}
