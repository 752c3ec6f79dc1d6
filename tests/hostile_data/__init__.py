"""Files and paths made to break whoever reads them, and what comes of each."""
