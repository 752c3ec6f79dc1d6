"""Development scripts: screenshots, bundled data, generated docs, test selection, installation of torch."""
