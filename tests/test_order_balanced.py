from __future__ import annotations

import numpy as np
import pytest
from orders import everything
from scipy import stats

from gpupipe.errors import ConfigError
from gpupipe.order import Weighted

LABELS = np.array([4] * 50 + [-2] * 3 + [9] * 7)


def test_classes_are_equally_likely_and_so_are_a_classs_samples() -> None:
    drawn = everything(Weighted.balanced(LABELS, num_samples=60_000), seed=3)
    of_class = [np.bincount(drawn, minlength=60)[label == LABELS] for label in (4, -2, 9)]
    assert stats.chisquare([counts.sum() for counts in of_class]).pvalue > 1e-4
    for counts in of_class:
        assert stats.chisquare(counts).pvalue > 1e-4


def test_an_epoch_is_as_long_as_the_dataset_unless_told() -> None:
    assert len(Weighted.balanced(LABELS)) == 60
    assert len(Weighted.balanced(LABELS, num_samples=7)) == 7


@pytest.mark.parametrize("labels", [[], [[1, 2]], [0.5, 1.0], ["cat", "dog"], 3])
def test_refuses_what_are_no_labels(labels: object) -> None:
    with pytest.raises(ConfigError, match=r"Weighted.balanced: labels must be one list of integers"):
        Weighted.balanced(labels)
