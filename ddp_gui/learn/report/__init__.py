"""The lab report: what a learner predicted, ran, saw and answered, as one HTML file that opens offline."""
