"""Samples are made once: nothing here changes them."""

from __future__ import annotations

import pytest
from tests.fakes.lab.sample_experiments import sample_experiment, sample_runs
from tests.fakes.lab.sample_runs import SampleRun, sample_run

from paceline.lab.experiment.results import ExperimentResult


@pytest.fixture(scope="session")
def run() -> SampleRun:
    return sample_run()


@pytest.fixture(scope="session")
def ladder_runs() -> dict[str, SampleRun]:
    return sample_runs()


@pytest.fixture(scope="session")
def experiment(ladder_runs: dict[str, SampleRun]) -> ExperimentResult:
    return sample_experiment(ladder_runs)
