"""Rules for refitting constants of engines and kernels: the file hardware_profiles/_calibration.yaml."""

from typing import Annotated, Literal

from sizing.specs.bands import BandMetric
from sizing.specs.engine_time import Factor
from sizing.specs.spec import Constraint, Spec
from sizing.specs.values import Fraction, NonNegative, NonNegativeInt, OneFile, Positive, PositiveInt, Text


class Fitted(Spec):
    """A field of an engine setting that the fit may change, between `least` and `most`.

    `prior` and `scale` are the expected value and its spread without data. `engine`, `since` and `until` restrict the rule to
    one engine and to rows of these versions.
    """

    setting: Literal["host", "front_end"]
    field: Text
    engine: Text | None = None
    since: Text | None = None
    until: Text | None = None
    least: NonNegative
    most: Positive
    step: Positive
    prior: NonNegative
    scale: Positive


class NotFitted(Spec):
    """Rows left out of a fit, and `why`. A row matches if its source, model, GPU and notes contain the stated texts.

    The expression `id` is searched in a row's id. `figures` leaves out these alone and keeps the others of the row. `p99_over_mean` matches rows whose TTFT has at least such a p99.
    `runs` is how many published runs it matched when they were last counted.
    """

    source: Text | None = None
    id: Text | None = None
    model: Text | None = None
    isl: PositiveInt | None = None
    concurrency: PositiveInt | None = None
    gpu: Text | None = None
    engine_version: Text | None = None
    notes: Text | None = None
    p99_over_mean: Positive | None = None
    figures: tuple[Literal["ttft_ms", "itl_ms", "e2e_ms", "req_per_s", "output_tok_per_s"], ...] = ()
    runs: NonNegativeInt = 0
    why: Text

    @property
    def is_doubt(self) -> bool:
        """Whether it is of runs with doubtful figures. Otherwise it is of a GPU whose kernels were not measured."""
        return self.source is not None or self.gpu is None


class BandRules(Spec):
    """How error bands are found: rows per run by mode, rows and groups that a class needs, tails to try, share to cover."""

    rows_per_run: dict[Text, PositiveInt]
    least_rows: PositiveInt
    least_groups: PositiveInt
    tails: tuple[Annotated[float, Constraint(ge=0, lt=0.5)], ...]
    covered: Fraction


class CorrectionRules(Spec):
    """How corrections of step times are found.

    A class needs `least_groups` groups. `shrink_groups` pulls factors towards 1, as that many groups without error would. The
    mean error on groups left out must fall by the share `least_gain`, and by `least_standard_errors` of the mean fall of a group. No
    metric's median error may rise by more than `most_loss`.
    """

    least_groups: PositiveInt
    shrink_groups: NonNegative
    least_gain: NonNegative
    least_standard_errors: NonNegative
    most_loss: NonNegative


class OwnRunRules(Spec):
    """How factors are fitted to own runs.

    `spread` is the expected distance of a factor from the base profile (compute and bandwidth as logarithms, times in us). A
    factor may move by up to `most` spreads. Beyond `far` spreads the run was probably made on another machine. `error` is the
    error of one measurement. `unexplained` is what factors leave of a measurement, its error included: it weighs by that, and
    deviations beyond `bend` times as much count linearly. `elsewhere` is what other lengths, loads and layouts
    add to the bands. A factor counts as known if the runs leave at most `most_left` of its spread. The simulator confirms a fit
    in at most `rounds` rounds. Runs are refused if a metric's median error stays above `most_off`. Runs of one setting contradict each other if they differ by more than `most_apart` errors.
    """

    spread: dict[Factor, Positive]
    most: Positive
    far: Positive
    error: dict[BandMetric, Positive]
    unexplained: dict[BandMetric, Positive]
    elsewhere: dict[BandMetric, Positive]
    bend: Positive
    most_left: Fraction
    rounds: PositiveInt
    most_off: Positive
    most_apart: Positive


class Calibration(OneFile):
    """The whole file."""

    FILE = "hardware_profiles/_calibration.yaml"

    fields: tuple[Fitted, ...]
    not_fitted: tuple[NotFitted, ...]
    rows_per_group: PositiveInt
    least_points: PositiveInt
    folds: Annotated[int, Constraint(ge=2)]
    loss_scale: Positive
    prior_weight: NonNegative
    rounds: PositiveInt
    least_gain: NonNegative
    bands: BandRules
    corrections: CorrectionRules
    own_runs: OwnRunRules
    date: Text
