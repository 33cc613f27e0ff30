"""The article from its first equation to its last claim: the code, and the test that watches it.

A place is a file and a piece of its text; the line number is looked up when the pages are built. A
place or a test that is no longer there is an error. What has neither is a choice, named in words.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import NamedTuple

from docutils import nodes
from docutils.parsers.rst import Directive

ROOT = Path(__file__).parent.parent
PACKAGE = "src/stochbatch/"
TESTS = "tests/"


class Entry(NamedTuple):
    """One statement: what it says, where it is, and its test; or what stands in their place."""

    where: str
    says: str
    file: str = ""
    text: str = ""
    test: str = ""
    choice: str = ""


SBS, UPDATE = f"{PACKAGE}optim/sbs.py", f"{PACKAGE}optim/update.py"
PROBABILITY, KINDS = f"{PACKAGE}optim/probability.py", f"{PACKAGE}optim/kinds.py"
ALGORITHM_1 = f"{PACKAGE}optim/article/algorithm1.py"
ALGORITHM_2 = f"{PACKAGE}optim/article/algorithm2.py"
BASELINES = f"{PACKAGE}optim/baselines/"
TRAINING, NETS, DATA = f"{PACKAGE}training/", f"{PACKAGE}nets/", f"{PACKAGE}data/"
STUDIES = f"{PACKAGE}studies/definitions/"

EVERY_WAY = "optim/test_sbs.py::test_every_way_to_draw_and_to_move_agrees_with_algorithm_2"
UNION = "optim/test_reference.py::test_a_stochastic_batch_is_the_union_since_the_last_move"
AGREES = "optim/test_reference.py::test_they_agree_where_gradients_do_not_depend_on_the_weights"
EQUALS = "optim/test_algorithm2.py::test_it_equals_sbs_over_epochs"
IN_DOUBLE = "optim/test_probability.py::test_agrees_with_the_article_in_double"
ALTERNATION = "optim/test_alternating.py::test_it_is_the_article_s_alternation"
LOOP = "training/test_runner.py::test_it_is_the_loop_that_one_would_write"
CELLS = "studies/test_grid.py::test_every_cell_of_the_article_has_its_published_numbers"
CLAIMS = "studies/test_claims.py::test_the_studies_claim_what_the_article_claims"

MAP = [
    # Sections 3 and 4: the method.
    Entry(
        "Eq. 1, 2",
        "the objective, a mean of losses over samples",
        f"{TRAINING}trainer.py",
        "def _forward_backward(self, epoch: int",
        LOOP,
    ),
    Entry(
        "Eq. 3, 4",
        "stochastic gradient descent: probability 1",
        UPDATE,
        "def _plus(",
        "optim/test_sbs.py::test_probability_one_is_sgd_bit_for_bit",
    ),
    Entry("Sections 1, 2", "prior work", choice="what is used of it is in Section 5"),
    Entry(
        "Section 3.1",
        "noise of mean zero whose variance falls with the batch size",
        choice="known of random batches: no claim",
    ),
    Entry(
        "Eq. 5 to 8",
        "alternating minimisation",
        f"{BASELINES}alternating.py",
        "move.mul_(rate_of(member.group)).masked_fill_(heads == second, 0)",
        ALTERNATION,
    ),
    Entry(
        "Eq. 9",
        "a coin with probability p",
        UPDATE,
        "uniforms < p",
        "optim/test_sbs.py::test_the_mask_of_a_step_can_be_computed_by_hand",
    ),
    Entry(
        "Eq. 10",
        "only drawn scalars move",
        UPDATE,
        "_plus(weight, _only(drawn, direction), rates.lr, -1)",
        EVERY_WAY,
    ),
    Entry("Eq. 11", "gradient over a stochastic batch", ALGORITHM_1, "def _gradient(", UNION),
    Entry("Eq. 12", "the stochastic batch", ALGORITHM_1, "# Eq. 12", UNION),
    Entry(
        "Section 4.1",
        "universal batches are those of SGD",
        f"{DATA}batches.py",
        "def batch(",
        "studies/test_grid.py::"
        "test_methods_begin_alike_and_see_the_same_images_so_that_differences_are_paired",
    ),
    Entry(
        "Section 4.1",
        "p = 1/2 is like Dropout, without zeros going forward; what is not drawn keeps its value",
        f"{TRAINING}methods.py",
        '"sbs-fixed-half": ',
        EVERY_WAY,
    ),
    Entry(
        "Algorithm 1",
        "random shuffling",
        f"{DATA}sampling.py",
        "def epoch_order(",
        "data/test_sampling.py::test_all_orders_are_equally_likely",
    ),
    Entry(
        "Algorithm 1", "an epoch starts with empty batches", ALGORITHM_1, "def new_epoch(", AGREES
    ),
    Entry(
        "Algorithm 1",
        "the union with the universal batch",
        ALGORITHM_1,
        'state.get("batches", 0))',
        UNION,
    ),
    Entry("Algorithm 1", "gradient and move where drawn", ALGORITHM_1, "# Eq. 10", UNION),
    Entry("Algorithm 1", "empty afterwards", ALGORITHM_1, "age.masked_fill_(chi, 0)", UNION),
    Entry(
        "Eq. 13",
        "rate times number of batches",
        UPDATE,
        "direction = direction * batches",
        "optim/test_sbs.py::test_linear_scaling_moves_by_the_sum_of_the_gradients",
    ),
    Entry(
        "Eq. 14",
        "cumulative moving average",
        UPDATE,
        "mean = (grad - grad_mean)",
        EVERY_WAY,
    ),
    Entry(
        "Eq. 15",
        "the move",
        UPDATE,
        "return torch.add(value, other, alpha=sign * factor)",
        EVERY_WAY,
    ),
    Entry("Algorithm 2", "an epoch starts with zero", ALGORITHM_2, "# g~_j = 0", EQUALS),
    Entry("Algorithm 2", "and with a count of one", ALGORITHM_2, "# k_j = 1", EQUALS),
    Entry(
        "Algorithm 2",
        "in every epoch of a training",
        f"{TRAINING}trainer.py",
        "self.optimizer.new_epoch()",
        LOOP,
    ),
    Entry(
        "Algorithm 2",
        "one gradient per universal batch",
        f"{TRAINING}trainer.py",
        ".backward()",
        LOOP,
    ),
    Entry("Algorithm 2", "the average", ALGORITHM_2, "# Eq. 14", EQUALS),
    Entry("Algorithm 2", "the move", ALGORITHM_2, "# Eq. 10, 15", EQUALS),
    Entry(
        "Algorithm 2", "the average where drawn", ALGORITHM_2, "# g~_j = (1 - chi_j) g~_j", EQUALS
    ),
    Entry("Algorithm 2", "the count", ALGORITHM_2, "# k_j = (1 - chi_j) (k_j + 1) + chi_j", EQUALS),
    Entry("Algorithm 2", "all of it, for tensors", UPDATE, "def update(", EVERY_WAY),
    Entry(
        "Section 4.2",
        "it estimates Algorithm 1",
        "examples/algorithm1.py",
        "def distances(",
        "test_readme.py::test_the_example_of_algorithm_1_shows_a_gap_that_falls_with_the_square_of_the_rate",
    ),
    Entry(
        "Section 4.2",
        "moves of other weights meanwhile help convergence",
        choice="not tested: the example measures distance, not convergence",
    ),
    Entry(
        "Section 4.2",
        "as many back-propagations as SGD: one per batch",
        f"{TRAINING}trainer.py",
        "self.scaler.scale(loss).backward()",
        LOOP,
    ),
    Entry(
        "Eq. 16",
        "the sigmoid",
        PROBABILITY,
        "def _sigmoid_of_bits(",
        "optim/test_probability.py::test_sigmoid_of_bits",
    ),
    Entry(
        "Eq. 17",
        "size within the layer",
        PROBABILITY,
        "return _sigmoid_of_bits(grad.abs",
        IN_DOUBLE,
    ),
    Entry(
        "Eq. 18",
        "local scheme: its slope",
        PROBABILITY,
        "slope = _by_spread(layers.alpha",
        IN_DOUBLE,
    ),
    Entry(
        "Eq. 18",
        "alpha = 0 gives 1/2",
        PROBABILITY,
        "# The powers of f in 2**f",
        "optim/test_probability.py::test_alpha_and_lambd_zero_give_one_half_exactly",
    ),
    Entry(
        "Eq. 18",
        "the mean of p is 1/2",
        PROBABILITY,
        "def probability(grad",
        "optim/test_probability.py::"
        "test_the_mean_probability_is_one_half_where_scores_are_symmetric_and_nearly_so_elsewhere",
    ),
    Entry(
        "Section 4.3",
        "types of parameters, here kinds",
        KINDS,
        "def kind_in_module(",
        "optim/test_kinds.py::test_the_networks_of_the_article_keep_their_numbering",
    ),
    Entry(
        "Section 4.3",
        "its four types, scale and shift of a norm together",
        PROBABILITY,
        '"type": [',
        "optim/test_compare.py::test_scale_and_shift_of_norms_are_of_one_type",
    ),
    Entry(
        "Section 4.3",
        "means weighted by the number of parameters",
        PROBABILITY,
        'if reading == "total"',
        IN_DOUBLE,
    ),
    Entry("Eq. 19", "score across layers", PROBABILITY, "def _cross_layer_scores(", IN_DOUBLE),
    Entry(
        "Eq. 19",
        "over all the layers",
        PROBABILITY,
        '"all": [',
        EVERY_WAY,
    ),
    Entry("Eq. 20", "global scheme: its shift", PROBABILITY, "layers.lambd * score", IN_DOUBLE),
    Entry(
        "Eq. 20",
        "one probability for all of a layer where alpha = 0",
        PROBABILITY,
        "slope = _by_spread(layers.alpha",
        IN_DOUBLE,
    ),
    Entry(
        "Eq. 20",
        "the mean of p over layers is 1/2",
        PROBABILITY,
        "def layer_scores(",
        "optim/test_probability.py::"
        "test_the_mean_probability_of_layers_depends_on_the_skew_of_their_scores",
    ),
    Entry("Eq. 21", "both schemes together", PROBABILITY, "def probability(grad", IN_DOUBLE),
    # Section 5: the experiments.
    Entry(
        "Section 5",
        "CIFAR-10, SVHN, STL-10",
        f"{DATA}catalogue.py",
        "class Dataset",
        "data/test_catalogue.py::test_counts_and_shapes_are_the_published_ones",
    ),
    Entry(
        "Section 5",
        "VGG11 with batch norm",
        f"{NETS}vgg.py",
        "def vgg11(",
        "nets/test_networks.py::test_number_of_parameters",
    ),
    Entry(
        "Section 5",
        "ResNet18",
        f"{NETS}resnet.py",
        "def resnet18(",
        "nets/test_networks.py::test_number_of_parameters",
    ),
    Entry(
        "Section 5",
        "ResNet50",
        f"{NETS}resnet.py",
        "def resnet50(",
        "nets/test_networks.py::test_number_of_parameters",
    ),
    Entry(
        "Section 5",
        "Dropout 0.5",
        f"{TRAINING}methods.py",
        '"Dropout", torch.optim.SGD',
        "training/test_methods.py::test_the_article_s_settings",
    ),
    Entry(
        "Section 5",
        "Adaptive dropout",
        f"{NETS}dropout.py",
        "class StochasticDepth(",
        "nets/test_dropout.py::test_evaluation_of_stochastic_depth_weighs_branches_by_their_survival",
    ),
    Entry(
        "Section 5",
        "Entropy-SGD, five inner steps",
        f"{BASELINES}entropy_sgd.py",
        "L: int = 5",
        "optim/test_entropy_sgd.py::test_it_is_the_published_algorithm_under_a_schedule",
    ),
    Entry(
        "Section 5",
        "Entropy-SGD, an epoch of as many gradients as SGD's",
        f"{TRAINING}trainer.py",
        "def batches_per_step(",
        "training/test_runner.py::test_an_epoch_of_entropy_sgd_has_the_batches_of_one_of_sgd",
    ),
    Entry(
        "Section 5",
        "Accelerated-SGD",
        f"{BASELINES}acc_sgd.py",
        "class AccSGD(",
        "optim/test_acc_sgd.py::test_it_is_the_published_recursion_under_a_schedule",
    ),
    Entry(
        "Section 5",
        "rate, batch size and momentum of the baseline for all",
        f"{STUDIES}comparison.toml",
        "momentum = [0.0, 0.3, 0.6, 0.9]",
        "studies/test_grid.py::test_the_article_s_momenta_go_with_its_batch_sizes",
    ),
    Entry(
        "Section 5",
        "10 independent trials",
        f"{PACKAGE}studies/scales.py",
        "repetitions=10",
        "studies/test_grid.py::test_the_article_s_momenta_go_with_its_batch_sizes",
    ),
    Entry(
        "Section 5",
        "mean over the last 10 % of the epochs",
        f"{TRAINING}result.py",
        "first = len(curve)",
        "training/test_result.py::test_the_mean_is_over_the_last_tenth_of_the_epochs",
    ),
    Entry(
        "Section 5",
        "maximum of the average curve",
        f"{PACKAGE}studies/statistics.py",
        "def _best_of_mean_curve(",
        "studies/test_statistics.py::"
        "test_the_best_epoch_of_the_mean_curve_is_over_epochs_that_all_have",
    ),
    Entry(
        "Section 5.1",
        "sigmoid, 0.1 to 0.001",
        f"{PACKAGE}optim/schedules.py",
        "class SigmoidLR(",
        "optim/test_schedules.py::test_the_article_s_sigmoid",
    ),
    Entry(
        "Section 5.1",
        "exponential, 0.1 and 0.05",
        f"{TRAINING}lr_schedules.py",
        "def exponential(",
        "optim/test_schedules.py::test_the_other_schedules",
    ),
    Entry(
        "Section 5.1",
        "staircase, constants",
        f"{TRAINING}lr_schedules.py",
        "def staircase(",
        "optim/test_schedules.py::test_the_other_schedules",
    ),
    Entry(
        "Section 5.1",
        "RMSProp 0.95; Adam 0.9, 0.999",
        f"{TRAINING}methods.py",
        '"rmsprop": Method(',
        "training/test_methods.py::test_the_article_s_settings",
    ),
    Entry("Section 5.1", "grid search", choice="not repeated: the grid is not printed"),
    Entry(
        "Section 5.1",
        "sigmoid is the best",
        f"{STUDIES}lr-schedules.toml",
        'better = "Sigmoid"',
        CLAIMS,
    ),
    Entry("Section 5.1", "its curves are smooth", choice="to be seen in Figure 1; no claim"),
    Entry(
        "Section 5.1",
        "larger batches go with larger momentum",
        f"{STUDIES}batch-momentum.toml",
        "grows =",
        CLAIMS,
    ),
    Entry(
        "Section 5.2",
        "alpha = 0.1 is the best",
        f"{STUDIES}local-global.toml",
        'name = "alpha 0.1"',
        CLAIMS,
    ),
    Entry(
        "Section 5.2",
        "lambda = -4 is the best",
        f"{STUDIES}local-global.toml",
        'name = "lambda -4"',
        CLAIMS,
    ),
    Entry(
        "Section 5.2",
        "both are used throughout",
        SBS,
        "lambd: float = -4.0",
        "training/test_methods.py::test_the_article_s_settings",
    ),
    Entry(
        "Section 5.3",
        "each trial draws its part of the data",
        f"{DATA}sampling.py",
        "def subset(",
        "data/test_sampling.py::test_another_seed_draws_another_subset_and_every_sample_has_its_chance",
    ),
    Entry(
        "Section 5.3",
        "better than SGD at every batch size",
        f"{STUDIES}partial-data.toml",
        'name = "SBS against SGD"',
        CLAIMS,
    ),
    Entry(
        "Section 5.3",
        "the gain grows as data shrink",
        f"{STUDIES}partial-data.toml",
        'name = "more where data are few"',
        CLAIMS,
    ),
    Entry(
        "Section 5.4",
        "better than the five others everywhere",
        f"{STUDIES}comparison.toml",
        'name = "against SGD"',
        CLAIMS,
    ),
    Entry(
        "Abstract",
        "less sensitive to the batch size",
        f"{STUDIES}comparison.toml",
        'name = "less sensitive to the batch size"',
        CLAIMS,
    ),
    Entry(
        "Conclusion",
        "no additional computational cost",
        choice="of back-propagation, see Algorithm 2; steps are timed, 8 bytes more per weight",
    ),
    *(
        Entry(f"Table {number}", "its cells", f"{STUDIES}{name}.toml", "published =", CELLS)
        for number, name in enumerate(
            ("lr-schedules", "batch-momentum", "local-global", "partial-data", "comparison"), 1
        )
    ),
    Entry(
        "Table 4",
        "its improvements, as differences of its cells, beside ours",
        f"{PACKAGE}report/layout.py",
        "def published(",
        "report/test_charts.py::test_published_differences_are_those_of_the_article_s_tables",
    ),
    Entry(
        "Figure 1",
        "rates, losses and accuracy by schedule",
        f"{PACKAGE}report/figures.py",
        "def _schedules(",
        "report/test_figures.py::test_schedules_have_the_article_s_first_figure",
    ),
    Entry(
        "Figure 2",
        "accuracy over the epochs, batch size 16",
        f"{PACKAGE}report/charts.py",
        "def groups(",
        "report/test_figures.py::test_the_comparison_has_the_article_s_second_figure",
    ),
]


def line_of(entry: Entry) -> tuple[int, str]:
    """Return number and text of the one line that an entry names."""
    lines = (ROOT / entry.file).read_text(encoding="utf-8").splitlines()
    found = [(number, line.strip()) for number, line in enumerate(lines, 1) if entry.text in line]
    if len(found) != 1:
        raise ValueError(f"{entry.where}: {entry.text!r} is in {len(found)} lines of {entry.file}")
    return found[0]


def breakable(*parts: str) -> nodes.Node:
    """Return code, a line per part, that breaks only between words and names."""
    lines = []
    for part in parts:
        broken = re.sub(r"(?<=\w)([_/(])(?=\w)", r"\1<wbr>", html.escape(part))
        lines.append(f'<code class="docutils literal">{broken}</code>')
    return nodes.raw("", "".join(lines), format="html")


class ArticleMap(Directive):
    """The table itself."""

    def run(self) -> list[nodes.Node]:
        """Return the table, built from ``MAP``."""
        table = nodes.table(classes=["article-map"])
        group = nodes.tgroup(cols=4)
        table += group
        for width in (2, 4, 5, 5):
            group += nodes.colspec(colwidth=width)
        head, body = nodes.thead(), nodes.tbody()
        head += self._row("article", "what it says", nodes.Text("line of code"), nodes.Text("test"))
        for entry in MAP:
            if entry.file:
                number, line = line_of(entry)
                file = entry.file.removeprefix(PACKAGE)
                place = breakable(f"{file}:{number}", line)
            else:
                place = nodes.Text(entry.choice)
            test = breakable(*entry.test.split("::")) if entry.test else nodes.Text("")
            body += self._row(entry.where, entry.says, place, test)
        group += [head, body]
        return [table]

    @staticmethod
    def _row(where: str, says: str, place: nodes.Node, test: nodes.Node) -> nodes.row:
        row = nodes.row()
        for content in (nodes.Text(where), nodes.Text(says), place, test):
            paragraph = nodes.paragraph()
            paragraph += content
            cell = nodes.entry()
            cell += paragraph
            row += cell
        return row


def setup(app: object) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("article-map", ArticleMap)  # type: ignore[attr-defined]
    return {"parallel_read_safe": True, "parallel_write_safe": True}
