"""Tiny text-to-image pipelines with random weights, built in code and saved like real ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SIZE = 32  # side of the pictures in pixels


def _clip_vocabulary(folder: Path) -> Path:
    """Files of a CLIP tokenizer whose words are single bytes: 2 × 256 bytes and two marks make 514 entries."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    words = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    return folder


def _tokenizer(folder: Path) -> Any:
    from transformers import CLIPTokenizer

    return CLIPTokenizer.from_pretrained(
        _clip_vocabulary(folder), model_max_length=77, pad_token="<|endoftext|>", local_files_only=True
    )


def _text_encoder(width: int) -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel

    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=514, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=77, bos_token_id=512, eos_token_id=513, pad_token_id=513, projection_dim=width,
        )
    )  # fmt: skip


def _vae() -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=(8, 16), norm_num_groups=4, sample_size=SIZE, shift_factor=0.0,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip


def _unet(width: int) -> Any:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=SIZE // 2, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4, attention_head_dim=4,
        cross_attention_dim=width, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip


def _safety_checker(*, flags: bool) -> Any:
    """A safety checker that flags every picture, or none: each cosine lies above -2 and below 2."""
    import torch
    from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
    from transformers import CLIPConfig

    tower = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    checker = StableDiffusionSafetyChecker(
        CLIPConfig(vision_config={**tower, "image_size": 32, "patch_size": 16}, text_config=tower, projection_dim=8)
    )
    for weights in (checker.concept_embeds_weights, checker.special_care_embeds_weights):
        weights.data = torch.full_like(weights, -2.0 if flags else 2.0)
    return checker


def tiny_pipeline(folder: Path, *, seed: int = 0, flags: bool | None = None) -> Path:
    """A Stable Diffusion of 32-pixel pictures saved in `folder`.

    flags  whether it has a safety checker that takes every picture for unsafe (True) or none (False); None: no checker.
    """
    import torch
    from diffusers import PNDMScheduler, StableDiffusionPipeline
    from transformers import CLIPImageProcessor

    torch.manual_seed(seed)
    small = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    pipeline = StableDiffusionPipeline(
        vae=_vae(),
        text_encoder=_text_encoder(16),
        tokenizer=_tokenizer(folder / "tokenizer"),
        unet=_unet(16),
        scheduler=PNDMScheduler(
            beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", skip_prk_steps=True, steps_offset=1
        ),
        safety_checker=None if flags is None else _safety_checker(flags=flags),
        feature_extractor=None if flags is None else CLIPImageProcessor(**small),
        requires_safety_checker=flags is not None,
    )
    pipeline.save_pretrained(folder)
    return folder


def tiny_flow_pipeline(folder: Path, *, seed: int = 0) -> Path:
    """A Flux (a transformer with flow matching, CLIP and T5: no Stable Diffusion) of 32-pixel pictures."""
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
    from tokenizers import Tokenizer
    from tokenizers.models import Unigram
    from transformers import T5Config, T5EncoderModel, T5TokenizerFast

    torch.manual_seed(seed)
    words = ["<pad>", "</s>", "<unk>", *(chr(code) for code in range(32, 127))]
    letters = Tokenizer(Unigram([(word, -float(i)) for i, word in enumerate(words)], unk_id=2, byte_fallback=False))
    t5 = {"vocab_size": len(words), "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    pipeline = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=_vae(),
        text_encoder=_text_encoder(16),
        tokenizer=_tokenizer(folder / "tokenizer"),
        text_encoder_2=T5EncoderModel(T5Config(**t5)),
        tokenizer_2=T5TokenizerFast(tokenizer_object=letters, extra_ids=0, model_max_length=64),
        transformer=FluxTransformer2DModel(
            in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
            joint_attention_dim=16, pooled_projection_dim=16, axes_dims_rope=(4, 4, 8),
        ),
    )  # fmt: skip
    pipeline.save_pretrained(folder)
    return folder


if __name__ == "__main__":  # python tests/tiny_diffusion.py FOLDER
    tiny_pipeline(Path(sys.argv[1]))
