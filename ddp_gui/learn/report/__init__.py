"""The lab report: a learner's predictions, runs, measurements and answers in one self-contained HTML file."""
