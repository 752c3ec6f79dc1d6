"""Scripts of the house: what makes the screenshots, the bundled data and the generated docs."""
