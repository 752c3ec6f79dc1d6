"""Tables: CSV, TSV and Parquet."""
