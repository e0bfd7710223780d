"""Every benchmark, as data: one entry each holds its home, licence, citation, sources, protocol and measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType

from .. import labels
from . import measures as m
from .spec import PAPER, SPURIOUS_IMAGE, SPURIOUS_VAL, Benchmark, Source, Split, ZeroShot
from .views import Classification, Detection, SpuriousPairs

_A = labels.indices_of(labels.imagenet_a_wnids())
_O = labels.indices_of(labels.imagenet_o_wnids())
_SPURIOUS = tuple(c.index for c in labels.spurious_classes())
_D_GROUPS = tuple(c.indices for c in labels.imagenet_d_categories())
_D = tuple(sorted(i for group in _D_GROUPS for i in group))

_NO_PICTURE_LICENCE = "The released code is MIT; the pictures themselves carry no licence grant."
_NATURAL = """@inproceedings{hendrycks2021nae,
  title     = {Natural Adversarial Examples},
  author    = {Hendrycks, Dan and Zhao, Kevin and Basart, Steven and Steinhardt, Jacob and Song, Dawn},
  booktitle = {CVPR}, year = {2021}, eprint = {1907.07174}
}"""

IMAGENET_A = Benchmark(
    name="imagenet-a",
    title="ImageNet-A",
    description="7,500 natural pictures of 200 ImageNet classes that a ResNet-50 gets wrong.",
    repo_id="hf_robust/imagenet-a",
    homepage="https://github.com/hendrycks/natural-adv-examples",
    licence=_NO_PICTURE_LICENCE,
    citation=_NATURAL,
    sources=(
        Source("test", "imagenet-a", published_rule=PAPER),
        Source("control", "imagenet-val", published_rule=PAPER, classes=_A, optional=True),
    ),
    view=Classification,
    mask=_A,
    mask_name="the 200 classes of ImageNet-A, before argmax and softmax",
    measures=(
        m.top1_accuracy,
        m.top1_accuracy_1000,
        m.top5_accuracy,
        m.rms_calibration_error,
        m.rms_calibration_error_released_code,
        m.aurra,
        m.control_top1_accuracy,
        m.accuracy_drop,
    ),
    headline="top1_accuracy",
    gate=m.control_top1_accuracy_1000,
    protocol=MappingProxyType(
        {
            "confidence": "maximum softmax probability over the same 200 classes",
            "control": "ImageNet validation pictures of the same 200 classes",
        }
    ),
    caveats=("ResNet-50 was the filter, so its own accuracy is near 0 by construction.",),
)

IMAGENET_O = Benchmark(
    name="imagenet-o",
    title="ImageNet-O",
    description="2,000 pictures of classes outside ImageNet-1k that a ResNet-50 takes for one of 200 ImageNet classes.",
    repo_id="hf_robust/imagenet-o",
    homepage="https://github.com/hendrycks/natural-adv-examples",
    licence=_NO_PICTURE_LICENCE,
    citation=_NATURAL,
    sources=(
        Source("outside", "imagenet-o", published_rule=PAPER),
        Source("inside", "imagenet-val", published_rule=PAPER, classes=_O),
    ),
    view=Detection,
    mask=_O,
    mask_name="the 200 classes of ImageNet-O, before softmax",
    measures=(m.aupr, m.auroc, m.fpr95, m.id_accuracy),
    headline="aupr",
    gate=m.id_accuracy_1000,
    protocol=MappingProxyType(
        {
            "positive_class": "out-of-distribution",
            "anomaly_score": "minus the maximum softmax probability",
            "in_distribution": "ImageNet validation pictures of the same 200 classes",
        }
    ),
    refused=MappingProxyType(
        dict.fromkeys(
            ("accuracy", "top1_accuracy", "top1_accuracy_1000", "top5_accuracy"),
            "its folders name the class that a ResNet-50 confuses the picture with, not a label; accuracy against them "
            "falls as models improve. Use aupr; id_accuracy is the in-distribution accuracy",
        )
    ),
)

SPURIOUS_IMAGENET = Benchmark(
    name="spurious-imagenet",
    title="Spurious ImageNet",
    description="100 classes with 75 pictures each that show only a spurious feature of the class, never its object.",
    repo_id="hf_robust/spurious-imagenet",
    homepage="https://github.com/YanNeu/spurious_imagenet",
    licence="The pictures come from OpenImages, which lists each with its author and its CC BY 2.0 licence.",
    picture_licence="cc-by-2.0",
    citation="""@inproceedings{neuhaus2023spurious,
  title     = {Spurious Features Everywhere - Large-Scale Detection of Harmful Spurious Features in ImageNet},
  author    = {Neuhaus, Yannic and Augustin, Maximilian and Boreiko, Valentyn and Hein, Matthias},
  booktitle = {ICCV}, year = {2023}, eprint = {2212.04871}
}""",
    sources=(
        Source("spurious", "spurious-imagenet", rule=SPURIOUS_IMAGE, published_rule=SPURIOUS_IMAGE),
        Source("validation", "imagenet-val", published_rule=SPURIOUS_VAL, classes=_SPURIOUS),
    ),
    view=SpuriousPairs,
    measures=(m.spurious_score, m.spurious_auroc, m.spurious_joint_ap, m.validation_top1_accuracy),
    headline="spurious_score",
    gate=m.validation_top1_accuracy,
    protocol=MappingProxyType(
        {
            "positive_class": "validation pictures of the class",
            "score": "softmax probability of the class over all outputs of the model",
            "chance": "average precision 0.40 with 50 validation and 75 spurious pictures a class; AUROC 0.50",
        }
    ),
)

IMAGENET_D = Benchmark(
    name="imagenet-d",
    title="ImageNet-D",
    description="4,835 pictures made by a diffusion model: 113 categories on unusual backgrounds, textures, materials.",
    repo_id="hf_robust/imagenet-d",
    homepage="https://github.com/chenshuang-zhang/imagenet_d",
    licence="We know of no licence grant for the pictures; ask its authors (homepage) before passing them on.",
    citation="""@inproceedings{zhang2024imagenetd,
  title     = {ImageNet-D: Benchmarking Neural Network Robustness on Diffusion Synthetic Object},
  author    = {Zhang, Chenshuang and Pan, Fei and Kim, Junmo and Kweon, In So and Mao, Chengzhi},
  booktitle = {CVPR}, year = {2024}, eprint = {2403.18775}
}""",
    sources=(
        Source("test", "imagenet-d"),
        Source("control", "imagenet-val", classes=_D, label_groups=_D_GROUPS, optional=True),
    ),
    view=Classification,
    mask_name="all 1,000 classes; any ImageNet index of the category is right",
    measures=(m.top1_accuracy, m.top5_accuracy, m.control_top1_accuracy, m.accuracy_drop),
    headline="top1_accuracy",
    gate=m.control_top1_accuracy_1000,
    split=Split("nuisance", ("background", "texture", "material")),
    zero_shot=ZeroShot("imagenet-d", "category", tuple(c.folder for c in labels.imagenet_d_categories()), _D_GROUPS),
    protocol=MappingProxyType(
        {
            "control": "ImageNet validation pictures of the same classes, any index of the category is right",
        }
    ),
    caveats=("Another data set called imagenet_d, derived from DomainNet, is not this one.",),
)

IMAGENET_VAL = Benchmark(
    name="imagenet-val",
    title="ImageNet validation",
    description="The 50,000 validation pictures of ILSVRC 2012: clean accuracy, the other axis of every table.",
    repo_id=None,
    homepage="https://www.image-net.org/challenges/LSVRC/2012/",
    licence="Under ImageNet's own terms of access; never published from here.",
    citation="""@article{russakovsky2015imagenet,
  title   = {ImageNet Large Scale Visual Recognition Challenge},
  author  = {Russakovsky, Olga and Deng, Jia and Su, Hao and Krause, Jonathan and Satheesh, Sanjeev and others},
  journal = {IJCV}, year = {2015}, eprint = {1409.0575}
}""",
    sources=(Source("test", "imagenet-val"),),
    view=Classification,
    mask_name="all 1,000 classes",
    measures=(
        m.top1_accuracy,
        m.top5_accuracy,
        m.rms_calibration_error,
        m.rms_calibration_error_released_code,
        m.aurra,
    ),
    headline="top1_accuracy",
    gate=m.top1_accuracy,
    protocol=MappingProxyType({"confidence": "maximum softmax probability over all outputs of the model"}),
)

IMAGENET_TRAIN = replace(
    IMAGENET_VAL,
    name="imagenet-train",
    title="ImageNet training",
    description="The training pictures of ILSVRC 2012, or some of them: what out-of-distribution scores fit on.",
    sources=(Source("test", "imagenet-train"),),
    measures=(m.top1_accuracy,),
    caveats=("Accuracy on the pictures that a model was trained on says nothing about other pictures.",),
    fit_only=True,
)

PUBLISHED = (IMAGENET_A, IMAGENET_O, SPURIOUS_IMAGENET, IMAGENET_D, IMAGENET_VAL)


@cache
def benchmarks() -> Mapping[str, Benchmark]:
    """Every benchmark by name: ours, then those of plug-ins (entry points in the group hf_robust.benchmarks)."""
    known = {b.name: b for b in (*PUBLISHED, IMAGENET_TRAIN)}
    for point in entry_points(group="hf_robust.benchmarks"):
        benchmark = point.load()
        known.setdefault(benchmark.name, benchmark)
    return MappingProxyType(known)


def benchmark(name: str) -> Benchmark:
    """The benchmark of that name; KeyError lists the known ones.

    >>> benchmark("imagenet-o").headline
    'aupr'
    """
    if name not in benchmarks():
        raise KeyError(f"unknown benchmark {name!r}; known: {', '.join(sorted(benchmarks()))}")
    return benchmarks()[name]
