"""Vision-language models of transformers: a picture and a question in, a text or the likelihood of given texts out."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .base import ModelError, Request
from .from_transformers import pretrained
from .trouble import library_errors, require

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

PREFIX = "hf-vqa/"
# What a model's own generation settings may keep; sampling, beams and penalties of a repository are not taken over.
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True)
class Answer:
    """What a model says to a question; `ended` is False where it was cut at the largest number of tokens."""

    text: str
    ended: bool


@dataclass(frozen=True)
class Likelihood:
    """Log-likelihood of a text as the answer: sum over its tokens, natural logarithm; and how many tokens those are."""

    total: float
    tokens: int


@dataclass(frozen=True)
class VisionLanguageModel:
    """A loaded model with its processor, which writes the conversation and prepares the pictures.

    preprocessing  everything that decides what the model sees of a picture and a question, JSON; in every result.
    """

    name: str
    module: torch.nn.Module
    processor: Any
    preprocessing: Mapping[str, Any]

    def answers(self, pictures: Sequence[Image], questions: Sequence[str], *, most_tokens: int) -> list[Answer]:
        """The greedy answer to one question a picture (RGB), at most `most_tokens` tokens each, blanks stripped."""
        import torch

        inputs = self._inputs([self._prompt(question) for question in questions], pictures)
        with torch.inference_mode():
            tokens = self.module.generate(**inputs, max_new_tokens=most_tokens)  # type: ignore[operator]
        said = tokens[:, inputs["input_ids"].shape[1] :].cpu()
        ends = torch.tensor(_ends(self.module))
        texts = self.processor.tokenizer.batch_decode(said, skip_special_tokens=True)
        ended = torch.isin(said, ends).any(dim=1).tolist()
        return [Answer(text.strip(), bool(end)) for text, end in zip(texts, ended, strict=True)]

    def likelihoods(
        self, pictures: Sequence[Image], questions: Sequence[str], options: Sequence[Sequence[str]]
    ) -> list[tuple[Likelihood, ...]]:
        """How likely each option is as the beginning of the answer: a tuple a picture, in the order of its options.

        The end of the answer is not part of it, as in lm-evaluation-harness.
        """
        import torch

        prompts = [self._prompt(question) for question in questions]
        texts = [
            [p + _gap(self.processor.tokenizer, p) + o for o in of] for p, of in zip(prompts, options, strict=True)
        ]
        flat = [text for of in texts for text in of]
        repeated = [picture for picture, of in zip(pictures, texts, strict=True) for _ in of]
        inputs = self._inputs(flat, repeated)
        before = _ids(self._inputs(prompts, pictures))
        full = _ids(inputs)
        counts, rows = [], iter(full)
        for prompt, of in zip(before, texts, strict=True):
            own = [next(rows) for _ in of]
            shared = min(_common(prompt, ids) for ids in own)  # tokens may merge across the end of the prompt
            counts += [len(ids) - shared for ids in own]
        with torch.inference_mode():
            logits = self._last_logits(inputs, max(counts) + 1)
        totals = [_log_likelihood(z, ids[-n:]) for z, ids, n in zip(logits, full, counts, strict=True)]
        found = iter(Likelihood(total, n) for total, n in zip(totals, counts, strict=True))
        return [tuple(next(found) for _ in of) for of in texts]

    def _prompt(self, question: str) -> str:
        message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}
        prompt: str = self.processor.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
        return prompt

    def _inputs(self, texts: Sequence[str], pictures: Sequence[Image]) -> Any:
        first = self.processor.tokenizer.bos_token
        inputs = self.processor(
            text=list(texts),
            images=[[picture] for picture in pictures],
            padding=True,
            add_special_tokens=first is None or not texts[0].startswith(first),  # most templates write it themselves
            return_tensors="pt",
        )
        parameter = next(self.module.parameters())
        return inputs.to(parameter.device, parameter.dtype)

    def _last_logits(self, inputs: Any, count: int) -> torch.Tensor:
        """Float32 logits of the last `count` positions: a vocabulary of 150,000 is not kept for every picture token."""
        short = "logits_to_keep" in inspect.signature(self.module.forward).parameters
        output = self.module(**inputs, use_cache=False, **({"logits_to_keep": count} if short else {}))
        logits: torch.Tensor = output.logits[:, -count:].float().cpu()
        return logits


def _ends(module: Any) -> list[int]:
    ends = module.generation_config.eos_token_id
    return list(ends) if isinstance(ends, list | tuple) else [ends]


def _gap(tokenizer: Any, prompt: str) -> str:
    """A blank where the prompt ends in a word such as "ASSISTANT:"; none after a blank or a special token."""
    closed = prompt[-1:].isspace() or any(prompt.endswith(token) for token in tokenizer.all_special_tokens)
    return "" if closed else " "


def _ids(inputs: Any) -> list[list[int]]:
    """The token ids of each row without its padding."""
    pairs = zip(inputs["input_ids"], inputs["attention_mask"], strict=True)
    return [ids[mask.bool()].tolist() for ids, mask in pairs]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _log_likelihood(logits: torch.Tensor, ids: Sequence[int]) -> float:
    """Sum of log-softmax of these last ids of a row; the logits before a token are those that predict it."""
    import torch

    rows = torch.log_softmax(logits[-len(ids) - 1 : -1].double(), dim=-1)
    return float(rows[torch.arange(len(ids)), torch.tensor(ids)].sum())


def load_vqa(name: str, *, dtype: str = "float32", trust_remote_code: bool = False) -> VisionLanguageModel:
    """The model `hf-vqa/<repository or folder>`, on the CPU, in evaluation mode.

    dtype  "float32", "bfloat16" or "float16": what the weights are loaded as.
    Raises ModelError for another name, for a model without a chat template, and whatever keeps it from loading.
    """
    if not name.startswith(PREFIX) or name == PREFIX:
        raise ModelError(f"expected a vision-language model as {PREFIX}REPO_OR_FOLDER, got {name!r}")
    transformers = require("transformers", "transformers", name=name)
    import torch

    request = Request(name, name.removeprefix(PREFIX), trust_remote_code=trust_remote_code)
    with library_errors(f"{name}: its processor"):
        processor = transformers.AutoProcessor.from_pretrained(request.argument, trust_remote_code=trust_remote_code)
    _check_processor(processor, name)
    auto = transformers.AutoModelForImageTextToText
    module = pretrained(transformers, auto, request, dtype=getattr(torch, dtype)).eval()
    if getattr(module.config, "is_encoder_decoder", False):
        raise ModelError(f"{name}: expected a model that continues its prompt, got {type(module).__name__}, an encoder-"
                         "decoder: take one that chats")  # fmt: skip
    tokenizer = processor.tokenizer
    tokenizer.padding_side = "left"  # an answer begins where its prompt ends
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    module.generation_config = _greedy(transformers, module, tokenizer)
    return VisionLanguageModel(name, module, processor, _preprocessing(processor, tokenizer))


def _check_processor(processor: Any, name: str) -> None:
    if not all(hasattr(processor, part) for part in ("tokenizer", "image_processor")):
        raise ModelError(
            f"{name}: expected a processor of pictures and text, got {type(processor).__name__}: this is no "
            "vision-language model"
        )
    if not getattr(processor, "chat_template", None):
        raise ModelError(
            f"{name}: expected a chat template, which says how a question is put to the model, got none: take its "
            "instruction-tuned version, or save a processor with one"
        )


def _greedy(transformers: Any, module: Any, tokenizer: Any) -> Any:
    own = {key: getattr(module.generation_config, key, None) for key in _TOKENS}
    own["eos_token_id"] = own["eos_token_id"] if own["eos_token_id"] is not None else tokenizer.eos_token_id
    own["pad_token_id"] = own["pad_token_id"] if own["pad_token_id"] is not None else tokenizer.pad_token_id
    return transformers.GenerationConfig(do_sample=False, num_beams=1, repetition_penalty=1.0, **own)


def _preprocessing(processor: Any, tokenizer: Any) -> dict[str, Any]:
    template = json.dumps(processor.chat_template, sort_keys=True)
    return {
        "processor": type(processor).__name__,
        "chat_template": hashlib.sha256(template.encode()).hexdigest(),
        "pictures": json.loads(processor.image_processor.to_json_string()),
        "tokenizer": hashlib.sha256(tokenizer_state(tokenizer).encode()).hexdigest(),
    }


def tokenizer_state(tokenizer: Any) -> str:
    """Everything that decides how a tokenizer cuts a text, as one text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return str(backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True))
