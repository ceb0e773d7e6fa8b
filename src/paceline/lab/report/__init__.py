"""What a person reads: one HTML file for a run, an experiment or two runs side by side, and the terminal.

    render_report      page of a run's or an experiment's folder; one file that needs no network
    render_comparison  page of two runs, B against A
    terminal           live progress and closing summary

It decides nothing and measures nothing: verdicts come from the gates, numbers from `lab.metrics`; it draws the records
those were computed from. May import `contracts`, `lab.metrics`, `lab.stats`, `lab.artefact` and the plain types of
`lab.load.progress` and `lab.experiment.results`. Never speaks to a server, never loads anything from a network.
"""

from __future__ import annotations

from paceline.lab.report.render import render_comparison, render_report

__all__ = ["render_comparison", "render_report"]
