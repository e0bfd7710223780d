"""A vision-language model of a current architecture (Qwen2.5-VL), tiny, randomly initialised, built in code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

Lesson = tuple[Any, str, str]

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
           "<|video_pad|>")  # fmt: skip


def tokenizer() -> Any:
    """One token a byte, and the special tokens of the architecture."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokens, eos_token="<|im_end|>", pad_token="<|endoftext|>", extra_special_tokens=list(SPECIAL)
    )


def config(words: Any) -> Any:
    from transformers import Qwen2_5_VLConfig

    number = {name: words.convert_tokens_to_ids(name) for name in SPECIAL}
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(words), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 512,
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0},
            "bos_token_id": None, "eos_token_id": number["<|im_end|>"], "pad_token_id": number["<|endoftext|>"],
        },
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32,
            "patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1],
        },
        image_token_id=number["<|image_pad|>"], video_token_id=number["<|video_pad|>"],
        vision_start_token_id=number["<|vision_start|>"], vision_end_token_id=number["<|vision_end|>"],
    )  # fmt: skip


def save(
    folder: Path, *, seed: int = 0, template: str | None = TEMPLATE, lessons: Sequence[Lesson] = (), **generation: Any
) -> Path:
    """The folder with the model and its processor, as save_pretrained writes them.

    lessons     (picture, question, answer) that the model is trained on until it knows them.
    generation  settings that its repository would sample with.
    """
    import torch
    from transformers import (
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
    )

    words = tokenizer()
    pictures = Qwen2VLImageProcessor(min_pixels=28 * 28, max_pixels=4 * 28 * 28)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(config(words))
    processor = Qwen2_5_VLProcessor(pictures, words, Qwen2VLVideoProcessor(), chat_template=template)
    if lessons:
        teach(model, processor, lessons)
    model.generation_config.update(**generation)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def teach(model: Any, processor: Any, lessons: Sequence[Lesson]) -> None:
    """Train until every next token of every answer, its end included, is the most probable one."""
    import torch

    pictures, questions, answers = zip(*lessons, strict=True)
    prompts = [
        processor.apply_chat_template(
            [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}],
            add_generation_prompt=True, tokenize=False,
        )
        for question in questions
    ]  # fmt: skip
    texts = [f"{prompt}{answer}<|im_end|>" for prompt, answer in zip(prompts, answers, strict=True)]
    inputs = processor(
        text=texts, images=[[p] for p in pictures], padding=True, padding_side="left", return_tensors="pt"
    )
    length = max(len(answer.encode()) for answer in answers) + 1
    labels = inputs["input_ids"][:, -length:].clone()
    for row, answer in zip(labels, answers, strict=True):
        row[: length - len(answer.encode()) - 1] = -100
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(1000):
        logits = model(**inputs, use_cache=False).logits[:, -length - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        if bool(((logits.argmax(-1) == labels) | (labels == -100)).all()) and loss.item() < 0.2:
            return
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    raise RuntimeError(f"expected the lessons learnt in 1000 steps, got a loss of {loss.item():.3f}: use fewer lessons")
